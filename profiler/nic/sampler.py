"""Samples a node at short intervals, and keeps those of the last window."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Self

from profiler.nic.exposition import exposition
from profiler.nic.node_reader import NodeReader
from profiler.nic.pressure import NodeGauges, node_gauges
from profiler.nic.readings import NodeSample

_LOG = logging.getLogger(__name__)
INTERVAL_S = 1.0
WINDOW_S = 15.0
"""Window of the gauges: a usual scrape interval, so that what happens between two scrapes is in one of them."""
END_S = 1.0
"""Most time that the end waits for a sample. The kernel, or a DPDK application, may take longer to answer."""


class Sampler:
    """Samples a node every `interval_s` in a thread of its own while its context is entered.

    The gauges are those of the last `window_s` seconds, and of two samples at least: a rate needs both, and a busy node
    may take longer than that between them. `sampled` is called after each sample.
    """

    def __init__(
        self,
        reader: NodeReader,
        *,
        interval_s: float = INTERVAL_S,
        window_s: float = WINDOW_S,
        sampled: Callable[[], None] = lambda: None,
    ) -> None:
        self._reader = reader
        self._interval_s = interval_s
        self._window_s = window_s
        self._sampled = sampled
        self._samples: deque[NodeSample] = deque()
        self._problems: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nic-sampler", daemon=True)

    def sample(self) -> NodeGauges:
        """Take a sample now, and return the gauges of the window that ends with it."""
        sample = self._reader.read()
        with self._lock:
            self._samples.append(sample)
            while len(self._samples) > 2 and self._samples[0].at_s < sample.at_s - self._window_s:
                self._samples.popleft()
            self._problems = self._reader.problems
        self._sampled()
        return self.gauges()

    def gauges(self) -> NodeGauges:
        """Return the gauges of the last window; a sample must have been taken."""
        with self._lock:
            samples = tuple(self._samples)
        return node_gauges(samples)

    def text(self) -> str:
        """Return the text of one scrape."""
        with self._lock:
            samples, problems = tuple(self._samples), self._problems
        return exposition(samples[-1], node_gauges(samples), problems)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what could not be read at the last sample."""
        return self._problems

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.sample()
            except Exception:  # noqa: BLE001 -- it is logged
                # One sample that fails does not end the next ones. While all fail, `sampled` is not called.
                _LOG.exception("cannot take a sample")

    def __enter__(self) -> Self:
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(END_S)
