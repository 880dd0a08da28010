"""Watches SpeechPipelines and ComputePools, the operator's own kinds, with kopf; keeps their stores up to date.

kopf handles discovery, credentials, lists, watches and reconnection. Only low-level `on.event` handlers are used, which
add no finalizers or annotations and write nothing. kopf runs in a thread of its own. It does not notice deletions while
a watch is interrupted, so `controller.loop` calls `resync` every five minutes.

Pods, nodes and workloads are watched by `controller.kube.watch`, which says why kopf does not fit them.
"""

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Self, cast

from controller.kube.client_library import without_kinds
from controller.kube.gateway import BUDGETS, PAGE, PIPELINES, POOLS, Gateway, NotFound, Resource
from controller.kube.store import ResourceStore

with without_kinds():
    import kopf

_BEAT_S = 1.0
_WORKERS = 100
_IDLE_S = 0.1  # a worker holds the last event of its object for this long
_EVENTS_PER_COLLECTION = 250
"""Garbage is collected once per this many events, even during a cycle: kopf leaves 30 KiB of it per event."""
_GROUP, _VERSION = PIPELINES.api_version.split("/")


class ResourceWatches:
    """Keeps the stores of the operator's own kinds up to date, from `start` until its context is left."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        pipelines: ResourceStore,
        pools: ResourceStore,
        budgets: ResourceStore,
        beat: Callable[[], None],
        died: Callable[[], None],
        namespaces: tuple[str, ...] = (),
    ) -> None:
        """Watch the pipelines in `namespaces`, or in all if that is empty, and all pools and budgets.

        The stores know which of them they want. `beat` is called every second while kopf runs, `died` when kopf ends
        before the context is left.
        """
        self._gateway = gateway
        self._namespaces = namespaces
        self._stores: dict[Resource, ResourceStore] = {PIPELINES: pipelines, POOLS: pools, BUDGETS: budgets}
        self._beat = beat
        self._died = died
        self._stop = threading.Event()
        self._ended = False
        self._listed = False
        self._thread: threading.Thread | None = None

    def resync(self) -> None:
        """List all objects of the operator's own kinds, and remove from the stores those that no longer exist.

        Raises:
            KubeError: a list failed; `NotFound` when the CRDs are not installed.
        """
        for resource, store in self._stores.items():
            try:
                scopes = self._namespaces if resource.namespaced and self._namespaces else (None,)
                store.resync(page for scope in scopes for page in self._gateway.pages(resource, scope))
            except NotFound:
                raise NotFound(
                    f"the API server does not serve {resource.plural}.{_GROUP}: apply Sluice's CRDs first"
                ) from None
        self._listed = True

    def listed(self) -> bool:
        """Return whether a `resync` has succeeded, so that the stores are complete."""
        return self._listed

    def start(self) -> None:
        """Start watching, unless the watches already run or no `resync` has succeeded yet.

        kopf looks for the CRDs only once, when it starts, so they must be installed before. It then lists all objects.
        """
        if self._thread is None and self._listed:
            self._thread = threading.Thread(target=self._run, name="watches")
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        finally:
            if self._ended:
                self._died()

    async def _watch(self) -> None:
        async def heartbeat() -> None:
            while True:
                self._beat()
                await asyncio.sleep(_BEAT_S)

        beats = asyncio.create_task(heartbeat())  # before kopf, which cancels all tasks that start after it
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=_settings(),
                # Without one kopf asks for the name of the user, and fails where a container's user has none.
                identity=cast("Any", "sluice"),
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=self._stop,
            )
        finally:
            beats.cancel()
            self._ended = not self._stop.is_set()
            self._stop.set()  # a thread of kopf waits for it, and the event loop ends only after that thread

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**_: Any) -> kopf.ConnectionInfo:
            return kopf.ConnectionInfo(**asdict(self._gateway.connection()))

        for resource, store in self._stores.items():
            _feed(registry, resource, store)
        return registry


def _feed(registry: kopf.OperatorRegistry, resource: Resource, store: ResourceStore) -> None:
    events = itertools.count(1)

    @kopf.on.event(_GROUP, _VERSION, resource.plural, registry=registry)
    async def seen(event: kopf.RawEvent, **_: Any) -> None:
        body = dict(event["object"])
        if event["type"] == "DELETED":
            store.remove(body)
        else:
            store.put(body)
        if next(events) % _EVENTS_PER_COLLECTION == 0:
            gc.collect(0)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # scanning needs the right to watch all CRDs
    # These three bound the memory of thousands of objects.
    settings.watching.chunk_size = PAGE
    settings.queueing.worker_limit = _WORKERS
    settings.queueing.idle_timeout = _IDLE_S
    return settings
