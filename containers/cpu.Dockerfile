# Turnwise for a CPU, with the packages of the lock file.
#   docker build -f containers/cpu.Dockerfile -t turnwise:cpu .
#   docker run --rm -it -v "$PWD/runs:/work/runs" turnwise:cpu train quickstart
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home agent && mkdir /work && chown agent /work
COPY . /src
RUN pip install --no-cache-dir torch==2.13.0 && pip install --no-cache-dir --constraint /src/requirements.lock "/src[quickstart,serve]" \
    && rm -rf /src
USER agent
WORKDIR /work
ENTRYPOINT ["turnwise"]
CMD ["--help"]
