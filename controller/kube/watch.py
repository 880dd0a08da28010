"""Keeps the objects of one built-in kind up to date: lists them, then watches; lists again if a watch expires.

kopf watches the operator's own kinds (`controller.handlers`). It does not fit pods, nodes and workloads:

* There are up to 17,000 pods at 5,000 pipelines. kopf runs a worker per object and leaves 30 KiB of garbage per event:
  25,000 Deployments took 280 MiB and 13 s of CPU. Here only the fields that are read are stored of an object.
* A decision must not rest on pods or nodes of minutes ago. `Watch.objects` raises when the last answer is too old or
  the right to read was withdrawn. kopf reports neither.
* kopf ends the whole operator on an error event other than 410, such as a change of the etcd leader.
* The result of a write must be known in the next cycle, before the watch reports it (`Watch.amend`).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from types import MappingProxyType
from typing import Generic, TypeVar

from controller.kube.gateway import (
    EventStream,
    Expired,
    Gateway,
    Json,
    KubeError,
    Listing,
    NotFound,
    Resource,
    Unavailable,
)
from controller.kube.store import Key, Store

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_REQUEST_S = 20
"""Duration of one watch request. The server ends it with a bookmark, so a silent server is noticed soon after."""
_SILENT_S = 2.5 * _REQUEST_S
_BRIEF_S = 3.0
"""An interruption of up to this many seconds is not reported to readers."""
_FIRST_S = 30.0
EVERYTHING: Mapping[str, str] = MappingProxyType({})
_PAUSES_S = (0.2, 2.0)  # after the first failure, and at most
_ABSENT_S = 10.0
"""How often a kind is looked for that is not installed."""
_AT_ONCE_S = 1.0
"""A stream that ends within this time without an event counts as failed; repeating it at once would be a hot loop."""


class Watch(Generic[T]):
    """Keeps the objects of one kind, in one namespace or in all, and reports when they may be outdated."""

    def __init__(
        self,
        gateway: Gateway,
        resource: Resource,
        keep: Callable[[Json], T],
        *,
        namespace: str | None = None,
        beat: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
        selectors: Mapping[str, str] = EVERYTHING,
        wanted: Callable[[Json], bool] = lambda _: True,
    ) -> None:
        """Prepare to watch; nothing is requested yet.

        Args:
            gateway: sends the requests.
            resource: the kind to watch.
            keep: returns the stored form of an object.
            namespace: where to watch; all namespaces when None.
            beat: called at least every 30 s while `follow` runs, whether or not the server answers.
            monotonic: returns the seconds of a monotonic clock.
            selectors: query parameters such as `fieldSelector`.
            wanted: whether an object is stored.
        """
        self.resource = resource
        self._gateway = gateway
        self._namespace = namespace
        self._selectors = selectors
        self._store = Store(keep, wanted)
        self.beat = beat
        self._monotonic = monotonic
        self._version: str | None = None  # None: must be listed first
        self._problem: KubeError | None = None
        self._answered_s = float("-inf")
        self._tried = threading.Event()
        self._stream: EventStream | None = None
        self._progressed = False

    def objects(self) -> Mapping[Key, T]:
        """Return all objects in the order of their keys. Waits up to 30 s for the first list.

        Raises:
            KubeError: the objects may be outdated or incomplete: the server refuses, or has not answered in time.
        """
        if not self._tried.wait(_FIRST_S):
            raise Unavailable(f"the first list of {self.resource.plural} is not complete after {_FIRST_S:.0f} s")
        silent_s = self._monotonic() - self._answered_s
        if self._problem is not None and silent_s > _BRIEF_S:
            # A copy: the traceback of an error that is kept would keep the frames of all cycles that read it, with
            # their snapshots.
            raise copy(self._problem)
        if silent_s > _SILENT_S:
            raise Unavailable(f"the watch of {self.resource.plural} has received nothing for {silent_s:.0f} s")
        return self._store.snapshot()

    def amend(self, key: Key, version: str, change: Callable[[T], T]) -> None:
        """Apply the result of one of our writes at once, as `Store.amend` does; the watch reports it later."""
        self._store.amend(key, version, change)

    def resync(self) -> None:
        """List all objects now, and remove those from the store that no longer exist.

        Raises:
            KubeError: the list failed.
        """
        try:
            self._version = self._store.resync(self._pages())
            self._progressed = True
            self._answered()
        except KubeError as error:
            self._problem = copy(error)
            raise
        finally:
            self._tried.set()

    def add(self, namespace: str) -> None:
        """List the objects of one more namespace, which are wanted from now on.

        Raises:
            KubeError: the list failed; what was listed before stays.
        """
        for page in self._gateway.pages(self.resource, namespace, **self._selectors):
            for item in page.items:
                self._store.put(item)

    def drop(self, namespace: str) -> None:
        """Remove the objects of a namespace that are not wanted any more."""
        self._store.drop(namespace)

    def follow(self, stop: threading.Event) -> None:
        """Keep the objects up to date until `stop` is set; failures are retried with growing pauses."""
        shortest_s, longest_s = _PAUSES_S
        pause_s = shortest_s
        while not stop.is_set():
            self.beat()
            began_s = self._monotonic()
            self._progressed = False
            try:
                if self._version is None:
                    self.resync()
                self._stream_from(str(self._version), stop)
                if self._progressed:
                    pause_s = shortest_s
                if self._progressed or self._monotonic() - began_s > _AT_ONCE_S:
                    continue
            except Expired as error:
                _LOG.info("listing %s again: %s", self.resource.plural, error)
                self._version = None
                self._progressed = False  # if each list expires at once, the pauses must still grow
            except KubeError as error:
                if stop.is_set():
                    return
                if str(self._problem) != str(error) and not isinstance(error, NotFound):
                    _LOG.warning("watch of %s failed, retrying: %s", self.resource.plural, error)
                self._problem = copy(error)
                if isinstance(error, NotFound):
                    self._look_again(stop)
                    continue
            if self._progressed:
                pause_s = shortest_s
            stop.wait(pause_s)
            pause_s = min(longest_s, 2 * pause_s)

    def _look_again(self, stop: threading.Event) -> None:
        """Wait before looking for a kind that is not installed."""
        due_s = self._monotonic() + _ABSENT_S
        while not stop.wait(1.0) and self._monotonic() < due_s:
            self.beat()

    def interrupt(self) -> None:
        """Interrupt the request of `follow`, so that it notices at once that `stop` is set."""
        if self._stream is not None:
            self._stream.interrupt()

    def _stream_from(self, version: str, stop: threading.Event) -> None:
        stream = self._gateway.watch(self.resource, self._namespace, version, lasting_s=_REQUEST_S, **self._selectors)
        self._stream = stream
        self._answered()
        for event in stream:
            if stop.is_set():
                return
            self.beat()
            if event.kind == "DELETED":
                self._store.remove(event.object)
            elif event.kind != "BOOKMARK":
                self._store.put(event.object)
            self._version = event.object["metadata"]["resourceVersion"]
            self._progressed = True
            self._answered()

    def _pages(self) -> Iterator[Listing]:
        for page in self._gateway.pages(self.resource, self._namespace, **self._selectors):
            self.beat()
            yield page

    def _answered(self) -> None:
        self._answered_s = self._monotonic()
        self._problem = None
