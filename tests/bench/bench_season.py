"""What a history of the demand is worth, and what a useless one costs: Sluice beside itself without history.

Run `python tests/bench/bench_season.py [--case repeats]… [--seeds 1,2] [--jobs 2]`.

`daily` is the stated scenario: past days of another recording. `opening` has a load that rises from a tenth to the
whole within a second, twice in 40 minutes, as past seasons did up to half a minute earlier or later; a replica takes a
minute to start. The others are the stated scenario `bursty` with a history that repeats exactly (`repeats`), of the
other half of the recording (`other`), of the minutes of the same half in random order (`shuffled`), or of another scale
(`scale`). Past levels are read as from Prometheus; costs are USD.
"""

import csv
import gzip
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import yaml
from numpy.random import default_rng
from numpy.typing import NDArray
from stated_scenarios import number, stated

from controller.commands.terminal import Page
from simulations.experiment.experiment import SLUICE, RunRequest, run_and_bound
from simulations.results.results import Run
from simulations.scenario.patches import merged
from simulations.scenario.scenario import Scenario, load_scenario, with_documents
from simulations.scenario.schedule import Replay
from simulations.scenario.traces import Column, read_trace

Counts = NDArray[np.int64]
COLUMNS = ("case", "history", ">cost", ">windows", ">items", ">changes")
HALF_S = 28 * 60
SEASONS = 9
SCALE = 20
OPENING_S = 40 * 60
PHASE_S = 10 * 60
JITTER_S = 15.0


def code(begin_s: int) -> Counts:
    """Return half of the code-completion trace, per second, from `begin_s` on."""
    trace = read_trace("azure_llm_2023_code_1s.csv.gz", Column.ARRIVALS, folder=Path())
    return trace.values[begin_s : begin_s + HALF_S].astype(np.int64)


def shuffled() -> Counts:
    """Return past seasons of the minutes of the first half, each in another order."""
    rng = default_rng(1)
    minutes = code(0).reshape(-1, 60)
    return np.concatenate([rng.permutation(minutes) for _ in range(SEASONS)]).ravel()


def opening(seed: int, seasons: int, jitter_s: float) -> Counts:
    """Return seasons of two phases of a tenth of the load and two of the whole; each turn is late by a random time."""
    rng = default_rng(seed)
    trace = read_trace("mooncake_synthetic_1s.csv.gz", Column.ARRIVALS, folder=Path())
    found = []
    for _ in range(seasons):
        counts = Replay(trace=trace, copies=4, offset_s=rng.uniform(0, trace.span_s)).bins(rng, OPENING_S)
        turns_s = np.arange(1, OPENING_S // PHASE_S + 1) * PHASE_S + rng.normal(0.0, jitter_s, OPENING_S // PHASE_S)
        phase = np.searchsorted(turns_s, np.arange(OPENING_S))
        found.append(rng.binomial(counts.astype(np.int64), np.where(phase % 2 == 1, 1.0, 0.1)))
    return np.concatenate(found)


HISTORIES: Mapping[str, Callable[[], Counts]] = {
    "repeats": lambda: np.tile(code(0), SEASONS),
    "other": lambda: np.tile(code(HALF_S), SEASONS),
    "shuffled": shuffled,
    "scale": lambda: SCALE * np.tile(code(0), SEASONS),
}
CASES = ("daily", "opening", *HISTORIES)


def written(path: Path, counts: Counts) -> str:
    """Write a trace of `counts` per second to `path`; return its name."""
    with gzip.open(path, "wt", newline="") as file:
        csv.writer(file).writerows([("t_s", "arrivals"), *enumerate(map(int, counts))])
    return path.name


def case(name: str, folder: Path) -> Scenario:
    """Return the scenario of a case, with its files in `folder`."""
    if name == "daily":
        return stated("daily")
    base = stated("bursty")
    document: dict[str, Any] = yaml.safe_load(base.path.read_text())
    manifests = [(base.path.parent / each).resolve() for each in document["manifests"]]
    (load,) = document["load"]
    season = f"{HALF_S}s"
    if name == "opening":
        load["trace"] = written(folder / "opening.csv.gz", opening(1, 1, 0.0))
        past, season, document["duration"] = opening(2, SEASONS, JITTER_S), f"{OPENING_S}s", f"{OPENING_S}s"
    else:
        past = HISTORIES[name]()
    load["history"] = {"trace": written(folder / f"{name}-past.csv.gz", past), "column": "arrivals"}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**document, "name": name, "manifests": [str(each) for each in manifests]}))
    scenario = load_scenario(path)
    return with_history(scenario, {"season": season}, "60s" if name == "opening" else None)


def with_history(scenario: Scenario, history: Mapping[str, str] | None, startup: str | None = None) -> Scenario:
    """Return the scenario with this `demand.history`, and with this start-up time of all replicas if it is given."""
    changed = {}
    for name, document in scenario.documents.items():
        if name.startswith("SpeechPipeline/"):
            changed[name] = merged(document, {"spec": {"demand": {"history": history}}})
            for placement in (each for stage in changed[name]["spec"]["stages"] for each in stage["placements"]):
                if startup is not None:
                    placement["startup"] = startup
    return with_documents(scenario, changed)


def cells(name: str, history: str, run: Run) -> tuple[str, ...]:
    return (
        name,
        history,
        number(run.mean("cost"), ".3f"),
        number(run.mean("sla_windows_met"), ".1%"),
        number(run.mean("within_sla_share"), ".2%"),
        number(run.mean("replica_changes"), ".0f"),
    )


@click.command()
@click.option("--case", "cases", multiple=True, type=click.Choice(CASES))
@click.option("--seeds", default="1,2,3", help="comma-separated")
@click.option("--jobs", type=click.IntRange(min=1), default=2)
def main(cases: tuple[str, ...], seeds: str, jobs: int) -> None:
    page, rows = Page(), []
    requests = [RunRequest(policy=SLUICE, seed=int(seed)) for seed in seeds.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        for name in cases or CASES:
            known = case(name, Path(folder))
            for history, scenario in (("none", with_history(known, None)), ("used", known)):
                results, _ = run_and_bound(scenario, requests, [], jobs=jobs)
                rows.append(cells(name, history, Run(results=results, bound=None, cost_over_bound_range=None)))
                print(*rows[-1], flush=True)
    page.table(COLUMNS, rows)


if __name__ == "__main__":
    main()
