# An image with fedloom and the packages of a federation, built from this repository:
#
#     docker build --tag fedloom .
#     docker run --rm fedloom fedloom run demo rounds=1
#
# BASE: a Debian or Ubuntu with Python 3.11 or newer. pip's PyTorch brings the libraries of CUDA, so a GPU needs nothing but NVIDIA's container
# toolkit and `--gpus all`; where the libraries are to come from the base, take one such as nvidia/cuda:12.8.1-base-ubuntu24.04.
# TORCH: what PyTorch's selector (https://pytorch.org/get-started/locally/) shows after "pip3 install" for "CPU", for an image without CUDA
# that is 4 GB smaller. EXTRAS: the extras to install.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG TORCH=""
ARG EXTRAS="flower"
# g++ builds the engine of threads once for each user; without it fedloom uses processes.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates g++ python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/fedloom && if [ -n "${TORCH}" ]; then /opt/fedloom/bin/pip install --no-cache-dir ${TORCH}; fi
COPY pyproject.toml hatch_build.py README.md LICENSE /source/
COPY configs /source/configs
COPY docs /source/docs
COPY src /source/src
RUN /opt/fedloom/bin/pip install --no-cache-dir "/source[${EXTRAS}]" \
    && useradd --create-home fedloom \
    && install -d -o fedloom /var/lib/fedloom
ENV PATH=/opt/fedloom/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_HOME=/var/lib/fedloom/flwr
USER fedloom
WORKDIR /var/lib/fedloom
CMD ["fedloom", "--help"]
