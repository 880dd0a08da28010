"""The names of the pods on one node, by UID, read from the API server in a thread of its own."""

import logging
import threading
from collections.abc import Mapping
from typing import Self

from controller.kube.gateway import PODS, Gateway, KubeError
from profiler.nic.readings import PodName

_LOG = logging.getLogger(__name__)
REFRESH_S = 60.0
"""Time between two lists while all pods are known by name."""
RETRY_S = 5.0
"""Least time between two lists. A pod that is not known yet is asked for at once otherwise, then with the next list:
one that was deleted by force, and whose processes still run, stays unknown."""
FIRST_S = 2.0
"""Most time that the start waits for the first list."""
END_S = 1.0
"""Most time that the end waits for a list, which the API server may answer later or never."""


class NodePods:
    """Lists the pods of `node` while its context is entered. It needs the right to list pods of all namespaces."""

    def __init__(self, gateway: Gateway, node: str, *, refresh_s: float = REFRESH_S, retry_s: float = RETRY_S) -> None:
        self._gateway = gateway
        self._node = node
        self._refresh_s = refresh_s
        self._retry_s = retry_s
        self._names: Mapping[str, PodName] = {}
        self._listed: frozenset[str] = frozenset()
        self._asked: frozenset[str] = frozenset()
        self._unknown = threading.Event()
        self._first = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node-pods", daemon=True)

    def names(self, uids: frozenset[str]) -> Mapping[str, PodName]:
        """Return the names of the pods with `uids`, as far as they are known. An unknown one is asked for soon."""
        names = self._names
        self._asked = uids - names.keys()
        if not self._asked <= self._listed:
            self._unknown.set()
        return {uid: names[uid] for uid in uids if uid in names}

    def list(self) -> None:
        """List the pods of the node; after an error the names stay as they were.

        The version 0 lets the API server answer from its cache, which has an index of pods by node. Without it, the
        exporter of each node would make it read the pods of the whole cluster.
        """
        asked = self._asked
        try:
            pages = list(self._gateway.pages(PODS, fieldSelector=f"spec.nodeName={self._node}", resourceVersion="0"))
        except KubeError as error:
            _LOG.warning("cannot list the pods of node %s: %s", self._node, error)
            return
        self._names = {
            pod["metadata"]["uid"]: PodName(namespace=pod["metadata"]["namespace"], name=pod["metadata"]["name"])
            for page in pages
            for pod in page.items
        }
        self._listed = asked - self._names.keys()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.list()
            self._first.set()
            self._stop.wait(self._retry_s)
            self._unknown.wait(self._refresh_s)
            self._unknown.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        self._first.wait(FIRST_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._unknown.set()
        self._thread.join(END_S)
