# Plimsoll in a container, for the CPU: built on Debian 12, run on Debian 12 with only the libraries it needs.
#
#   docker build -t plimsoll .
#   docker run --rm -p 8080:8080 --ipc=host -v plimsoll:/data -v /my/models:/models:ro plimsoll
#
# --ipc=host gives ranks the host's shared memory; the 64 MB that a container gets by default are not enough for several.
FROM debian:12-slim AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /src
COPY docker/packages.build docker/packages.build
RUN apt-get update \
    && sed -e '/^#/d' docker/packages.build \
       | DEBIAN_FRONTEND=noninteractive xargs apt-get install -y --no-install-recommends nodejs npm \
    && rm -rf /var/lib/apt/lists/*
COPY package.json package-lock.json .npmrc ./
RUN npm ci --omit=dev --no-audit --no-fund
COPY . .
RUN cmake -S . -B build -DCMAKE_BUILD_TYPE=Release \
    && cmake --build build -j "$(nproc)" --target plimsoll plimsoll-engine webui \
    && DESTDIR=/image cmake --install build --prefix /usr --strip

FROM debian:12-slim
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
COPY docker/packages.run /tmp/packages.run
RUN apt-get update \
    && sed -e '/^#/d' /tmp/packages.run \
       | DEBIAN_FRONTEND=noninteractive xargs apt-get install -y --no-install-recommends \
    && rm -rf /var/lib/apt/lists/* /tmp/packages.run \
    && useradd --system --create-home --home-dir /data --shell /usr/sbin/nologin plimsoll
COPY --from=build /image /
COPY examples/models /usr/share/plimsoll/models
COPY docker/entrypoint.sh /usr/local/bin/plimsoll-entrypoint
USER plimsoll
WORKDIR /data
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s --retries=3 \
    CMD ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:8080/healthz"]
ENTRYPOINT ["tini", "-g", "--", "plimsoll-entrypoint"]
CMD ["serve"]
