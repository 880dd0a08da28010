"""The file with one record per item of a run, which the ingress writes and the scoring reads."""

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from simulations.results.scoring import Items, Outcome

_RECORD = struct.Struct("<HBdd")
_COLUMNS = np.dtype([("pipeline", "<u2"), ("outcome", "u1"), ("arrival_s", "<f8"), ("latency_s", "<f8")])


class RecordWriter:
    """Writes records to a new file at `path`; call `flush` now and then, and `close` at the end."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._buffer = bytearray()

    def add(self, pipeline: int, outcome: Outcome, arrival_s: float, latency_s: float) -> None:
        """Add the record of an item.

        `pipeline` is the index of the pipeline in the ingress's configuration; `arrival_s` is in seconds since the run
        began; `latency_s` is infinite for a lost item.
        """
        self._buffer += _RECORD.pack(pipeline, outcome, arrival_s, latency_s)

    def flush(self) -> None:
        """Write the records that were added since the last `flush` to the file."""
        self._file.write(self._buffer)
        self._file.flush()
        self._buffer.clear()

    def close(self) -> None:
        """Write the remaining records and close the file."""
        self.flush()
        self._file.close()


def read_records(path: Path, pipeline: int) -> Items:
    """Return the recorded items of one pipeline, given by its index in the ingress's configuration.

    The run may still be in progress: an incomplete last record is ignored.
    """
    content = path.read_bytes()
    table = np.frombuffer(content[: len(content) - len(content) % _RECORD.size], dtype=_COLUMNS)
    table = table[table["pipeline"] == pipeline]
    return Items(
        arrival_s=table["arrival_s"].astype(np.float64),
        latency_s=table["latency_s"].astype(np.float64),
        outcome=table["outcome"].copy(),
    )
