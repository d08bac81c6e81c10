# Turnwise for NVIDIA GPUs. The compiler stays in the image: Triton compiles kernels when they are first used.
#   docker build -f containers/cuda.Dockerfile -t turnwise:cuda .
#   mkdir -p runs && chmod a+rwx runs          # the user inside has the id 1000
#   docker run --rm -it --gpus all --shm-size 16g -v "$PWD/runs:/work/runs" turnwise:cuda doctor
# Read by eye only: the machine on which this file was written has no Docker. Tags are not pinned by digest.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv python3-dev gcc && rm -rf /var/lib/apt/lists/*
RUN userdel --remove ubuntu && useradd --create-home --uid 1000 agent && mkdir -p /work/runs && chown -R agent /work
ENV PATH=/opt/turnwise/bin:$PATH
# torch 2.11 is the version that the GPU tests run with; its wheel for CUDA 13 brings the CUDA libraries that it needs.
RUN python3 -m venv /opt/turnwise && pip install --no-cache-dir torch==2.11.0
COPY . /src
RUN pip install --no-cache-dir "/src[quickstart,serve,lora,cluster]" cuda-bindings && rm -rf /src
USER agent
WORKDIR /work
ENTRYPOINT ["turnwise"]
CMD ["--help"]
