"""The finished laps of a race in a folder: a race of hours that was interrupted goes on with the laps that lack."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from simulations.lab.race.entrants import Lap
from simulations.results.results import Provenance, RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedLap:
    """A lap that ended: what it was run of (`made`, and the entrant's `settings`), its measurements and its `result`.

    `static_peak_cost` is in USD, None where no fixed plan would do. `generator_lag_p99_s` is how late the load
    generator was; above `max_lag_s` the lap is invalid.
    """

    made: Provenance
    settings: Mapping[str, Any]
    kubernetes: str
    static_peak_cost: float | None
    generator_lag_p99_s: float
    max_lag_s: float
    result: RunResult

    @property
    def late(self) -> bool:
        """Return whether the load generator was too late for the lap to count."""
        return self.generator_lag_p99_s > self.max_lag_s


_DOCUMENT = TypeAdapter(FinishedLap)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLaps:
    """The laps in `folder`, one file for each entrant and seed."""

    folder: Path

    def read(self, lap: Lap, made: Provenance, settings: Mapping[str, Any]) -> FinishedLap | None:
        """Return the kept result of `lap`; None where there is none, or one of other files, settings or versions."""
        path = self.path(lap)
        if not path.exists():
            return None
        try:
            found = _DOCUMENT.validate_json(gzip.decompress(path.read_bytes()))
        except (OSError, EOFError, ValidationError):
            return None  # a file of another release, or one that was cut short: the lap is run again
        same = found.made.sha256 == made.sha256 and found.made.versions.get("sluice") == made.versions.get("sluice")
        return found if same and _text(found.settings) == _text(settings) else None

    def write(self, lap: Lap, finished: FinishedLap) -> None:
        """Keep `finished` as the result of `lap`, in place of an earlier one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(lap)
        partial = path.with_suffix(".partial")
        partial.write_bytes(gzip.compress(_DOCUMENT.dump_json(finished), mtime=0))
        partial.replace(path)

    def path(self, lap: Lap) -> Path:
        """Return the file of `lap`."""
        return self.folder / f"{lap.entrant.name.replace(':', '-')}-{lap.seed}.json.gz"


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(dict(settings), sort_keys=True)
