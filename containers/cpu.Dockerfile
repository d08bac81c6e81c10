# Turnwise for a CPU, with the packages of requirements.lock (made for Python 3.11).
#   docker build -f containers/cpu.Dockerfile -t turnwise:cpu .
#   mkdir -p runs && chmod a+rwx runs          # the user inside has the id 1000
#   docker run --rm -it -v "$PWD/runs:/work/runs" turnwise:cpu train quickstart
# Read by eye only: the machine on which this file was written has no Docker. Tags are not pinned by digest.
FROM python:3.11-slim
# gcc: torch and some environments compile small pieces when they are first used.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 agent && mkdir -p /work/runs && chown -R agent /work
# Torch first, so that a change of the code does not download it again. Without an index that has builds for a CPU alone
# (--build-arg TORCH_INDEX=URL), the image also has the CUDA libraries that torch brings.
ARG TORCH_INDEX
RUN PIP_EXTRA_INDEX_URL=$TORCH_INDEX pip install --no-cache-dir torch==2.13.0
COPY . /src
RUN pip install --no-cache-dir --constraint /src/requirements.lock "/src[quickstart,serve]" && rm -rf /src
USER agent
WORKDIR /work
ENTRYPOINT ["turnwise"]
CMD ["--help"]
