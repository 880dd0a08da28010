# Two images: `operator`, and `simulations` to spread `sluice simulate` over the pods of a Kubernetes Job.
# docs/image.md says how they are built and checked. No `# syntax=` line and no here-documents: buildah 1.28 builds this.
ARG BASE=docker.io/library/debian:trixie-slim

# Python and the user, shared by both images. An image keeps whole seconds and other timestamps than those of the build:
# modules compiled against timestamps would be compiled again at each start, and a read-only root cannot keep the result.
FROM ${BASE} AS runtime
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3 \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* \
 && PYTHONHASHSEED=0 python3 -m compileall -q -f --invalidation-mode unchecked-hash /usr/lib/python3* \
 && echo 'sluice:x:65532:65532:Sluice:/nonexistent:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'sluice:x:65532:' >> /etc/group
ENV PATH=/opt/sluice/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# pip lives in /opt/build, which no image has. The secrets are for sites with a package index or authority of their own.
FROM runtime AS build
ENV PYTHONHASHSEED=0
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv \
 && python3 -m venv /opt/build \
 && python3 -m venv --without-pip /opt/sluice
COPY requirements.lock requirements-build.lock /locks/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/ca.crt \
    /opt/build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /locks/requirements-build.lock \
 && /opt/build/bin/pip --python /opt/sluice/bin/python install --no-cache-dir --no-compile \
    --require-hashes --only-binary :all: -r /locks/requirements.lock
COPY pyproject.toml README.md LICENSE THIRD_PARTY_NOTICES.md /src/
COPY optimizer /src/optimizer
COPY profiler /src/profiler
COPY controller /src/controller
COPY simulations /src/simulations
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation -w /wheels /src \
 && /opt/build/bin/pip --python /opt/sluice/bin/python install --no-compile --no-deps --no-index /wheels/*.whl

FROM build AS operator-packages
RUN cd /opt/sluice/lib/python3*/site-packages \
 && rm -r simulations \
 && sed -i '\|^simulations/|d' sluice_operator-*.dist-info/RECORD

FROM build AS simulations-packages
COPY requirements-simulate.lock /locks/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/ca.crt \
    /opt/build/bin/pip --python /opt/sluice/bin/python install --no-cache-dir --no-compile \
    --require-hashes --only-binary :all: -r /locks/requirements-simulate.lock

# For each image: the list of what is in it (run where just the image's own Debian packages are installed), the compiled
# modules, and in a layer of its own the machine code, the only part in which two builds differ. numba compares the
# sources' timestamps, so these are set first. `cd /`: in /src the sources there would be compiled instead. The second
# run must find all machine code.
FROM runtime AS operator-files
ARG SOURCE_DATE_EPOCH=1767225600
COPY --from=build /opt/build /opt/build
COPY --from=operator-packages /opt/sluice /opt/sluice
COPY tests/install/bill_of_materials.py /
RUN python3 /bill_of_materials.py > /opt/sluice/sbom.cdx.json \
 && PYTHONHASHSEED=0 python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/sluice/lib \
 && find /opt/sluice -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

FROM operator-files AS operator-machine-code
RUN cd / && python -m optimizer.warm_up \
 && NUMBA_DEBUG_CACHE=1 python -m optimizer.warm_up > /warm.log \
 && grep -q 'data loaded' /warm.log && ! grep 'data saved' /warm.log \
 && mkdir /machine-code && find opt/sluice -name '*.nb[ic]' -exec cp -a --parents {} /machine-code \;

FROM runtime AS simulations-files
ARG SOURCE_DATE_EPOCH=1767225600
COPY --from=build /opt/build /opt/build
COPY --from=simulations-packages /opt/sluice /opt/sluice
COPY tests/install/bill_of_materials.py /
RUN python3 /bill_of_materials.py > /opt/sluice/sbom.cdx.json \
 && PYTHONHASHSEED=0 python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/sluice/lib \
 && find /opt/sluice -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

FROM simulations-files AS simulations-machine-code
COPY --from=operator-machine-code /machine-code /
RUN cd / && python -m simulations.warm_up \
 && NUMBA_DEBUG_CACHE=1 python -m optimizer.warm_up > /warm.log \
 && NUMBA_DEBUG_CACHE=1 python -m simulations.warm_up >> /warm.log \
 && grep -q 'data loaded' /warm.log && ! grep 'data saved' /warm.log \
 && mkdir /machine-code && find opt/sluice -name '*.nb[ic]' -exec cp -a --parents {} /machine-code \;

FROM runtime AS simulations
COPY --from=simulations-files /opt/sluice /opt/sluice
COPY --from=simulations-machine-code /machine-code /
ARG BASE
LABEL org.opencontainers.image.title="Sluice simulations" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}"
USER 65532:65532
WORKDIR /
ENTRYPOINT ["sluice"]
CMD ["simulate", "--help"]

# The last stage is what a build without --target makes.
FROM runtime AS operator
COPY --from=operator-files /opt/sluice /opt/sluice
COPY --from=operator-machine-code /machine-code /
ARG BASE
LABEL org.opencontainers.image.title="Sluice operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}"
USER 65532:65532
WORKDIR /
EXPOSE 8080
ENTRYPOINT ["sluice"]
CMD ["operator"]
