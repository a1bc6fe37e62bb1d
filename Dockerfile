# docker run --rm vramcast train qwen3-8b --gpus h100
# The page as well: docker build --build-arg EXTRAS=watch,web --tag vramcast-web .
#                   docker run --rm -p 8000:8000 vramcast-web web --host 0.0.0.0
FROM python:3.13-slim AS build
COPY . /source
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.13-slim
ARG EXTRAS=search,watch
RUN --mount=from=build,source=/wheels,target=/wheels \
    python -m pip install --no-cache-dir "vramcast[$EXTRAS] @ file://$(echo /wheels/*.whl)" \
    && useradd --uid 1000 --create-home vramcast
USER 1000
WORKDIR /work
ENTRYPOINT ["vramcast"]
CMD ["--help"]
