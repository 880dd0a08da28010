"""One kind of object, kept as it is now: listed once, followed from there, listed anew when the thread is lost."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from controller.kube.gateway import EventStream, Expired, Gateway, Json, KubeError, Listing, Resource, Unavailable
from controller.kube.store import Key, Store

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_LASTING_S = 20
"""A watch is asked for anew this often: a server that has fallen silent is found out soon after."""
_SILENT_S = 2.5 * _LASTING_S
_BRIEF_S = 3.0
"""A watch that broke off and was back within this long has missed nothing that matters."""
_FIRST_S = 30.0
WHOLE: Mapping[str, str] = MappingProxyType({})
_PAUSES_S = (0.2, 2.0)  # after the first failure, at most
_AT_ONCE_S = 1.0
"""A stream that ends within this time without a word has failed: asking again right away would be a hot loop."""


class Watch(Generic[T]):
    """What is known of one kind, of one namespace or of all, and whether that can be relied on now."""

    def __init__(
        self,
        gateway: Gateway,
        resource: Resource,
        keep: Callable[[Json], T],
        *,
        namespace: str | None = None,
        beat: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
        narrowed: Mapping[str, str] = WHOLE,
    ) -> None:
        """`keep` makes what is kept of an object; `narrowed` are selectors by the API's names of them.

        `beat` is called again and again while `follow` runs, whether or not the server answers.
        """
        self.resource = resource
        self._gateway = gateway
        self._namespace = namespace
        self._narrowed = narrowed
        self._store = Store(keep)
        self._beat = beat
        self._monotonic = monotonic
        self._version: str | None = None  # None: to be listed
        self._problem: KubeError | None = None
        self._heard_s = float("-inf")
        self._tried = threading.Event()
        self._stream: EventStream | None = None
        self._told = False

    def objects(self) -> Mapping[Key, T]:
        """Return all objects as last heard, in the order of their keys.

        Raises:
            KubeError: what was heard cannot be relied on: the server does not answer, refuses, or has fallen silent.
        """
        if not self._tried.wait(_FIRST_S):
            raise Unavailable(f"{self.resource.plural} are still being read after {_FIRST_S:.0f} s")
        silent_s = self._monotonic() - self._heard_s
        if self._problem is not None and silent_s > _BRIEF_S:
            raise self._problem
        if silent_s > _SILENT_S:
            raise Unavailable(f"nothing has been heard about {self.resource.plural} for {silent_s:.0f} s")
        return self._store.snapshot()

    def amend(self, key: Key, version: str, change: Callable[[T], T]) -> None:
        """Take in what a write of ours has answered, which the watch tells later."""
        self._store.amend(key, version, change)

    def resync(self) -> None:
        """List all objects.

        Raises:
            KubeError: they cannot be listed.
        """
        try:
            self._version = self._store.resync(self._pages())
            self._told = True
            self._heard()
        except KubeError as error:
            self._problem = error
            raise
        finally:
            self._tried.set()

    def follow(self, stop: threading.Event) -> None:
        """Keep the objects up to date until `stop`; what fails is tried again, ever less often."""
        shortest_s, longest_s = _PAUSES_S
        pause_s = shortest_s
        while not stop.is_set():
            self._beat()
            began_s = self._monotonic()
            self._told = False
            try:
                if self._version is None:
                    self.resync()
                self._stream_from(str(self._version), stop)
                if self._told:
                    pause_s = shortest_s
                if self._told or self._monotonic() - began_s > _AT_ONCE_S:
                    continue
            except Expired as error:
                _LOG.info("%s are listed anew: %s", self.resource.plural, error)
                self._version = None
                self._told = False  # where every list is too old at once, lists must not follow upon each other
            except KubeError as error:
                if stop.is_set():
                    return
                if str(self._problem) != str(error):
                    _LOG.warning("%s are not being watched: %s", self.resource.plural, error)
                self._problem = error
            if self._told:
                pause_s = shortest_s
            stop.wait(pause_s)
            pause_s = min(longest_s, 2 * pause_s)

    def interrupt(self) -> None:
        """Let `follow` look at its `stop` now."""
        if self._stream is not None:
            self._stream.interrupt()

    def _stream_from(self, version: str, stop: threading.Event) -> None:
        stream = self._gateway.watch(self.resource, self._namespace, version, lasting_s=_LASTING_S, **self._narrowed)
        self._stream = stream
        self._heard()
        for event in stream:
            if stop.is_set():
                return
            self._beat()
            if event.kind == "DELETED":
                self._store.remove(event.object)
            elif event.kind != "BOOKMARK":
                self._store.put(event.object)
            self._version = event.object["metadata"]["resourceVersion"]
            self._told = True
            self._heard()

    def _pages(self) -> Iterator[Listing]:
        for page in self._gateway.pages(self.resource, self._namespace, **self._narrowed):
            self._beat()
            yield page

    def _heard(self) -> None:
        self._heard_s = self._monotonic()
        self._problem = None
