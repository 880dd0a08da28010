"""The provenance of a result: the command, the versions, and the SHA-256 of each file that was read."""

import hashlib
import platform
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata, resources

from simulations.experiment.experiment import RunRequest
from simulations.policies.catalogue import TRAINED
from simulations.results.results import Provenance, RunResult, Tuning
from simulations.scenario.scenario import Scenario

_DISTRIBUTIONS = {"sluice": "sluice-operator", "numpy": "numpy", "numba": "numba", "scipy": "scipy"}


def provenance(scenario: Scenario, command: Sequence[str], runs: Iterable[RunResult | RunRequest] = ()) -> Provenance:
    """Return the provenance of `runs`, made or to be made of `scenario` by `command` on this machine."""
    files = dict(_files(scenario))
    if any(run.tuning is Tuning.TRAINED for run in runs):
        files[f"simulations/policies/{TRAINED}"] = (resources.files("simulations.policies") / TRAINED).read_bytes()
    return Provenance(
        command=tuple(command),
        versions=versions(),
        sha256={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    )


def versions() -> dict[str, str]:
    """Return the versions of what results depend on, as they are installed here."""
    found = {"python": platform.python_version()}
    for name, distribution in _DISTRIBUTIONS.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue  # not every command needs every library
    return dict(sorted(found.items()))


def _files(scenario: Scenario) -> Iterator[tuple[str, bytes]]:
    """Yield the scenario, its manifests and its traces, with the names they have in the scenario."""
    yield scenario.path.name, scenario.path.read_bytes()
    for name, path in zip(scenario.file.manifests, scenario.manifests, strict=True):
        yield name, path.read_bytes()
    traces = [load.trace for load in scenario.file.load if load.trace is not None]
    traces += [w.load.trace for w in scenario.file.what_if if w.load is not None and w.load.trace is not None]
    for name in dict.fromkeys(traces):
        path = scenario.path.parent / name
        bundled = resources.files("simulations.data") / "traces" / name
        yield name, path.read_bytes() if path.is_file() else bundled.read_bytes()
