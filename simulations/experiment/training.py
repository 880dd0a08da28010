"""Search for the best settings of each policy on training loads, so that each is compared at its best.

    python -m simulations.experiment.training [--policy NAME]… [--candidates N] [--jobs N]

For each policy: its documented settings and a random sample of the combinations in `SPACES`, `CANDIDATES` in all, each
run on every training scenario with all of its seeds. `best` chooses one of them. It is written, with all scores and the
hashes of the files read, to `simulations/policies/trained.json`; entries of policies that are not named stay.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import click
from numpy.random import default_rng

from simulations.experiment.experiment import RunRequest, run_all
from simulations.experiment.provenance import provenance
from simulations.policies.catalogue import POLICIES, TRAINED, Family
from simulations.results.results import RunResult
from simulations.scenario.scenario import Scenario, load_scenario
from simulations.scenario.schedule import derived_seed

SCENARIOS = ("steady", "bursty", "daily")
"""Folders of `simulations/scenarios` that have a `training.yaml`."""
CANDIDATES = 10
SEED = 1
GOOD_ENOUGH = 0.995
"""Settings with at least this share of calm windows within the SLA are compared by cost only."""
OBJECTIVE = (
    "the least cost, relative to the documented settings and averaged over the training scenarios, among settings with "
    f"{GOOD_ENOUGH:.1%} of the calm windows within the SLA on average and no violation of a cap; "
    "where there are none, the highest share"
)

_HARDWARE = {"hardware": ["first", "cheapest"]}

SPACES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "sluice": {"latency_headroom": [0.0, 0.05, 0.1, 0.15, 0.2, 0.3], "switching_cost_per_hour": [0.0, 0.05, 0.2]},
    "static-peak": {"latency_headroom": [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6]},
    "hpa": {
        **_HARDWARE,
        # A server with batches is as busy with one item as with eight, so a good target may be high.
        "target_utilization": [0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
        "target_queued": [0.0, 1.0, 2.0, 5.0],
        "metrics_window_s": [15.0, 30.0],
        "down_window_s": [60.0, 120.0, 300.0],
    },
    "keda": {
        **_HARDWARE,
        "target_ongoing": [0.25, 0.5, 1.0, 1.5, 2.0, 3.0],
        "metrics_window_s": [15.0, 30.0],
        "down_window_s": [60.0, 120.0, 300.0],
    },
    "kpa": {
        **_HARDWARE,
        "target_utilization": [0.1, 0.2, 0.3, 0.4, 0.5, 0.7],
        "stable_window_s": [30.0, 60.0],
        "scale_down_delay_s": [0.0, 60.0, 180.0],
    },
    "ray-serve": {
        **_HARDWARE,
        "target_ongoing_requests": [0.5, 1.0, 1.5, 2.0, 3.0],
        "upscale_delay_s": [0.0, 10.0, 30.0],
        "downscale_delay_s": [60.0, 180.0, 600.0],
        "look_back_period_s": [10.0, 30.0],
    },
    "flink": {
        **_HARDWARE,
        "target_utilization": [0.4, 0.5, 0.6, 0.7],
        "utilization_boundary": [0.1, 0.2, 0.3],
        "metrics_window_s": [60.0, 120.0],
        "stabilization_s": [0.0, 30.0],
        "scale_down_delay_s": [60.0, 180.0, 600.0],
    },
    "wva": {
        "queue_threshold": [2.0, 3.0, 5.0],
        "queue_spare_trigger": [1.0, 1.5, 3.0],
        "interval_s": [15.0, 30.0],
        "hpa_down_window_s": [0.0, 120.0, 300.0],
        "hpa_tolerance": [0.0, 0.1],
    },
    "inferno": {
        "sla_share": [0.2, 0.3, 0.4, 0.5, 0.6, 0.8],
        "saturation": ["None", "PriorityExhaustive"],
        "interval_s": [15.0, 30.0, 60.0],
    },
    "dynamo": {
        **_HARDWARE,
        "sla_share": [0.3, 0.4, 0.5, 0.6, 0.8],
        "predictor": ["constant", "kalman"],
        "throughput_interval_s": [30.0, 60.0, 180.0],
        "load_scaling": [False, True],
    },
    "inferline": {
        "sla_share": [0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
        "down_wait_s": [15.0, 60.0, 180.0],
        "down_window_s": [30, 60],
    },
    "plus-one": {
        **_HARDWARE,
        "up_share": [0.5, 0.6, 0.7, 0.8, 1.0],
        "down_share": [0.2, 0.3, 0.4, 0.5],
        "cooldown_s": [30.0, 60.0, 180.0],
        "metrics_window_s": [15.0, 30.0],
    },
}
"""The values searched, by policy and setting; settings that are not listed keep their documented value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of settings over all training runs.

    `relative_cost` is the mean of the cost over that of the documented settings, `windows_met` the mean share (0–1) of
    calm windows within the SLA, and `cap_violations` the number of cap violations in all runs.
    """

    relative_cost: float
    windows_met: float
    cap_violations: int


def candidates(family: Family[Any], *, count: int) -> list[Any]:
    """Return the documented settings and up to `count` - 1 others, drawn without repetition from the policy's space."""
    space = SPACES[family.name]
    every = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    others = [settings for values in every if (settings := family.settings_of(values)) != family.default]
    rng = default_rng(derived_seed(SEED, *family.name.encode()))
    order = rng.permutation(len(others))[: max(0, count - 1)]
    return [family.default, *(others[index] for index in sorted(order))]


def score(results: Sequence[RunResult], documented: Sequence[RunResult]) -> Score:
    """Return the score of settings from their runs, `results`, and those of the documented settings, `documented`.

    Both have one run per training scenario and seed, in the same order. A run without scored windows counts as a share
    of 0.
    """
    ratios = [own.cost / other.cost for own, other in zip(results, documented, strict=True)]
    return Score(
        relative_cost=math.fsum(ratios) / len(ratios),
        windows_met=math.fsum(own.sla_windows_met_calm or 0.0 for own in results) / len(results),
        cap_violations=sum(own.cap_violations for own in results),
    )


def best(scores: Sequence[Score]) -> int:
    """Return the index of the best score by `OBJECTIVE`; of equal ones, the first."""
    good = [index for index, own in enumerate(scores) if own.windows_met >= GOOD_ENOUGH and own.cap_violations == 0]
    if good:
        return min(good, key=lambda index: scores[index].relative_cost)
    return max(range(len(scores)), key=lambda index: (scores[index].windows_met, -scores[index].relative_cost))


def train(name: str, scenarios: Sequence[Scenario], *, count: int, jobs: int) -> dict[str, Any]:
    """Search the settings of a policy and return its entry in the data file.

    The entry has the best of `count` settings, their score, the score of the documented settings, and all candidates.
    """
    family = POLICIES[name]
    settings_tried = candidates(family, count=count)
    by_load = [
        run_all(
            scenario,
            [RunRequest(policy=name, seed=seed, settings=settings) for settings in settings_tried],
            jobs=jobs,
            progress=_report,
        )
        for scenario in scenarios
        for seed in scenario.file.seeds
    ]
    runs = list(zip(*by_load, strict=True))
    scores = [score(results, runs[0]) for results in runs]
    winner = best(scores)
    return {
        "settings": family.values_of(settings_tried[winner]),
        "score": asdict(scores[winner]),
        "documented": asdict(scores[0]),
        "candidates": [
            {"settings": _differing(family, settings), **asdict(own)}
            for settings, own in zip(settings_tried, scores, strict=True)
        ],
    }


def training_scenarios() -> list[Scenario]:
    """Return the bundled training scenarios."""
    folder = Path(str(resources.files("simulations.scenarios")))
    return [load_scenario(folder / name / "training.yaml") for name in SCENARIOS]


def _differing(family: Family[Any], settings: Any) -> dict[str, Any]:
    documented = family.values_of(family.default)
    return {name: value for name, value in family.values_of(settings).items() if value != documented[name]}


def _report(result: RunResult) -> None:
    met = "–" if result.sla_windows_met_calm is None else f"{result.sla_windows_met_calm:.1%}"
    click.echo(f"{result.policy}: {result.cost:.2f} USD, {met} of the windows, {result.wall_s:.1f} s", err=True)


@click.command()
@click.option("--policy", "policies", multiple=True, type=click.Choice(list(POLICIES)), help="Default: all.")
@click.option("--candidates", "count", type=click.IntRange(min=1), default=CANDIDATES, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Default: the data file of the policies.")
def main(policies: tuple[str, ...], count: int, jobs: int, out: Path | None) -> None:
    """Search for the best settings of policies on training loads and write them to the data file."""
    path = out or Path(str(resources.files("simulations.policies") / TRAINED))
    scenarios = training_scenarios()
    for name in policies or tuple(POLICIES):
        command = f"python -m simulations.experiment.training --policy {name} --candidates {count}"
        entry = {"command": command, **train(name, scenarios, count=count, jobs=jobs)}
        _write(path, name, entry, scenarios)
        click.echo(f"{name}: {entry['score']} {entry['settings']}")


def _write(path: Path, name: str, entry: Mapping[str, Any], scenarios: Sequence[Scenario]) -> None:
    before = json.loads(path.read_text(encoding="utf-8"))["policies"] if path.is_file() else {}
    entries = {**before, name: entry}
    document = {
        "objective": OBJECTIVE,
        "seeds": {scenario.file.name: list(scenario.file.seeds) for scenario in scenarios},
        "scenarios": {scenario.file.name: dict(provenance(scenario, ()).sha256) for scenario in scenarios},
        "policies": {known: entries[known] for known in POLICIES if known in entries},
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
