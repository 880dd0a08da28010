"""Parts of an experiment, for several machines: each makes some of the runs and bounds, and one joins the files.

The joined results are those of one process, whatever the number of parts: a run depends on its request alone, numbers
are written so that they read back the same, and the order is that of the requests.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.core.codec import Json, decode, encode
from simulations.experiment.experiment import RunRequest, longest_first
from simulations.experiment.hindsight import BoundRequest
from simulations.results.results import BoundResult, Provenance, RunResult


class InvalidPart(ValueError):
    """A part is missing, or does not belong to the experiment; the message names the file and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """An experiment that is made in `parts` parts: its runs, its bounds and the provenance of its inputs.

    `options` are those of the command that change the scenario.
    """

    runs: tuple[RunRequest, ...]
    bounds: tuple[BoundRequest, ...]
    parts: int
    inputs: Provenance
    options: tuple[str, ...] = ()

    def part(self, number: int) -> tuple[tuple[RunRequest, ...], tuple[BoundRequest, ...]]:
        """Return the runs and the bounds of the part `number`, counted from 0; every part has some that take long."""
        requests: list[RunRequest | BoundRequest] = [*self.runs, *self.bounds]
        chosen = [requests[index] for index in sorted(longest_first(requests)[number :: self.parts])]
        return (
            tuple(request for request in chosen if isinstance(request, RunRequest)),
            tuple(request for request in chosen if isinstance(request, BoundRequest)),
        )

    def write(self, folder: Path, number: int, results: Sequence[RunResult], bounds: Sequence[BoundResult]) -> Path:
        """Write what the part `number` found to a file in `folder`, which is created if needed; return its path.

        The file is complete or not there, also if another process writes the same part.
        """
        document = {**self._heading(number), "results": encode(tuple(results)), "found": encode(tuple(bounds))}
        folder.mkdir(parents=True, exist_ok=True)
        path = (folder / self._name(number)).resolve()
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f".{path.name}.", delete=False) as unfinished:
            json.dump(document, unfinished, allow_nan=False)
        whole = Path(unfinished.name)
        whole.chmod(0o644)  # the pod that joins the parts may have another user
        whole.replace(path)
        return path

    def join(self, folder: Path) -> tuple[tuple[RunResult, ...], tuple[BoundResult, ...]]:
        """Return the results of the runs and of the bounds from the parts in `folder`, in the order of the requests.

        Raises:
            InvalidPart: a part is missing, cannot be read, or was made with other arguments, files or versions.
        """
        names = [self._name(number) for number in range(self.parts)]
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise InvalidPart(f"{folder}: {', '.join(missing)}: missing; make these parts first")
        runs: dict[RunRequest, RunResult] = {}
        bounds: dict[BoundRequest, BoundResult] = {}
        for number, name in enumerate(names):
            results, found = self._read(folder / name, number)
            part_runs, part_bounds = self.part(number)
            runs.update(zip(part_runs, results, strict=True))
            bounds.update(zip(part_bounds, found, strict=True))
        return tuple(runs[request] for request in self.runs), tuple(bounds[request] for request in self.bounds)

    def _read(self, path: Path, number: int) -> tuple[tuple[RunResult, ...], tuple[BoundResult, ...]]:
        runs, bounds = self.part(number)
        try:
            document = json.loads(path.read_text())
            other = [field for field, value in self._heading(number).items() if document[field] != value]
            # Those of another version may not be readable.
            results = () if other else decode(tuple[RunResult, ...], document["results"], "results")
            found = () if other else decode(tuple[BoundResult, ...], document["found"], "found")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InvalidPart(f"{path}: cannot be read as a part ({error}); make this part again") from None
        if other:
            raise InvalidPart(f"{path}: was made with other {', '.join(other)}; make this part again")
        if (len(results), len(found)) != (len(runs), len(bounds)):
            raise InvalidPart(f"{path}: lacks some of its runs; make this part again")
        return results, found

    def _heading(self, number: int) -> dict[str, Json]:
        """Return what a part must have been made with, as JSON; the names appear in messages."""
        runs, bounds = self.part(number)
        return {
            "arguments": [encode(runs), encode(bounds), *self.options],
            "files": encode(self.inputs.sha256),
            "versions": encode(self.inputs.versions),
        }

    def _name(self, number: int) -> str:
        return f"part-{number}-of-{self.parts}.json"
