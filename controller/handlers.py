"""The watches: kopf keeps the stores of custom resources fresh, in a thread of its own, and does nothing else.

Only low-level event handlers are used: no finalizers, no annotations, no writes. What watches miss, `resync` finds.
"""

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any, Self

import kopf

from controller.kube.gateway import PAGE, PIPELINES, POOLS, Gateway, NotFound, Resource
from controller.kube.store import ResourceStore

_BEAT_S = 1.0
_WORKERS = 100
_IDLE_S = 0.1  # a worker keeps the last event of its object for as long
_TIDIED = 250
"""Events after which garbage is looked for, be it within a cycle: kopf leaves 30 KiB of it behind for each of them."""
_GROUP, _VERSION = PIPELINES.api_version.split("/")


class Watches:
    """Feeds the stores of SpeechPipelines and ComputePools; watches from `begin` to the end of `with`."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        pipelines: ResourceStore,
        pools: ResourceStore,
        beat: Callable[[], None],
        died: Callable[[], None],
    ) -> None:
        """`beat` is called again and again while the watches turn, `died` when they end by themselves."""
        self._gateway = gateway
        self._stores: dict[Resource, ResourceStore] = {PIPELINES: pipelines, POOLS: pools}
        self._beat = beat
        self._died = died
        self._stop = threading.Event()
        self._ended = False
        self._known = False
        self._thread: threading.Thread | None = None

    def resync(self) -> None:
        """Read all resources and forget those that are gone: watches miss deletions while they are interrupted.

        Raises:
            KubeError: they cannot be read, because the server is away or the CRDs are not there.
        """
        for resource, store in self._stores.items():
            try:
                store.resync(self._gateway.pages(resource))
            except NotFound:
                raise NotFound(
                    f"the API server does not know {resource.plural}.{_GROUP}: apply Sluice's CRDs first"
                ) from None
        self._known = True

    def begin(self) -> None:
        """Watch from now on, if that has not begun. What `resync` has read before is listed once more.

        Not before that has succeeded: kopf looks for the CRDs once.
        """
        if self._thread is None and self._known:
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

        beats = asyncio.create_task(heartbeat())  # before kopf starts: it cancels whatever starts after it
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=_settings(),
                standalone=True,
                clusterwide=True,
                stop_flag=self._stop,
            )
        finally:
            beats.cancel()
            self._ended = not self._stop.is_set()
            self._stop.set()  # kopf waits for it in a thread, which the end of the event loop waits for in turn

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**_: Any) -> kopf.ConnectionInfo:
            connection = self._gateway.connection()
            return kopf.ConnectionInfo(
                server=connection.server,
                ca_path=connection.ca_path,
                insecure=connection.insecure,
                scheme=connection.scheme,
                token=connection.token,
                certificate_path=connection.certificate_path,
                private_key_path=connection.private_key_path,
            )

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
        if next(events) % _TIDIED == 0:
            gc.collect(0)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # it would need the right to watch all CRDs
    # There may be thousands of objects: they are read and let go by and by.
    settings.watching.chunk_size = PAGE
    settings.queueing.worker_limit = _WORKERS
    settings.queueing.idle_timeout = _IDLE_S
    return settings
