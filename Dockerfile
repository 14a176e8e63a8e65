# The image of both services. Any base with Python 3.11 or newer, its venv module and pip will do.
ARG BASE_IMAGE=python:3.12-slim

# ---- requirements: what pyproject.toml asks for, so that its other lines don't make the layers below anew -------------
FROM ${BASE_IMAGE} AS requirements
COPY pyproject.toml .
RUN python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        > /requirements.txt

# ---- builder: everything into /opt/venv -----------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS builder
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore

# Without pip inside: what is only needed to build stays in this stage.
RUN python3 -m venv --without-pip /opt/venv

# Torch in a layer of its own, it is most of the image. A base image may bring a wheel along (PIP_FIND_LINKS). Else
# TORCH_INDEX is asked besides PyPI, whose own build carries CUDA and is several times as large: give an empty
# TORCH_INDEX to get that one. An index that cannot be reached is a warning of pip's and leaves PyPI's build.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt ./
RUN into="python3 -m pip --python /opt/venv/bin/python install --quiet --constraint constraints.txt"; \
    if [ -z "${PIP_FIND_LINKS:-}" ] || ! $into --no-index --no-deps torch; \
    then $into ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch; \
    fi

# The other dependencies, which change less often than our code.
COPY --from=requirements /requirements.txt ./
RUN python3 -m pip --python /opt/venv/bin/python install --quiet --constraint constraints.txt --requirement requirements.txt

COPY . .
RUN python3 -m pip --python /opt/venv/bin/python install --quiet --no-deps .

# ---- runtime --------------------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS runtime
COPY --from=builder /opt/venv /opt/venv

# A number that is no user's of the host. The folder belongs to it, and so does a named volume that is first mounted there.
RUN groupadd --gid 10001 tandem \
    && useradd --uid 10001 --gid tandem --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tandem \
    && install --directory --owner tandem --group tandem --mode 0750 /var/lib/tandem
USER tandem
WORKDIR /var/lib/tandem

# OMP_WAIT_POLICY: two torch processes on one machine spin against each other without it. Caches go to /tmp, the only
# writable place besides the volume when the root file system is read-only.
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib \
    OMP_WAIT_POLICY=passive \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HEALTH_ADDRESS=127.0.0.1:50051

# The service's own gRPC health; HEALTH_ADDRESS is where it listens.
HEALTHCHECK --interval=5s --timeout=5s --start-period=180s --retries=6 \
    CMD exec python -m common.rpc.health_probe "$HEALTH_ADDRESS"

# In exec form: Python is the container's first process and gets SIGTERM itself. Which module runs, and with what
# arguments, is the command: `docker run IMAGE trainer_service --config FILE`.
ENTRYPOINT ["python", "-m"]
CMD ["trainer_service", "--help"]
