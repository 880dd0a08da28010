"""The simulator against the lab: the same scenarios, seeds and operator in both, once simulated and once live.

    python tests/bench/bench_fidelity.py [--seeds N] [--only NAME] [--write] [--json FILE]

Errors are simulated over live − 1. Windows are compared in steady phases: where neither run has changed a replica in
the window or in the one before; among them, those in which both ran the same replicas tell the error of the simulated
servers from that of the decisions that followed from it. The time to react is from the step of the load to the first
replica more, in cycles of the operator: a cycle that begins just before the step or just after it is luck, and makes a
difference of one. The scenario `speech` is that of the reference service, whose service times are those of real
computation: the live run comes first, and the simulated servers have the laws that Sluice learned in it.
`--write` makes the errors those that every report states. The machine must be idle: a live run whose
load was late is repeated once and then left out.
"""

import argparse
import io
import json
import math
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from live_service import MAX_LAG_S as SERVICE_LAG_S
from live_service import lived, simulated
from numpy.typing import NDArray
from rich.console import Console

from optimizer.model import PipelineKey
from simulations.experiment.experiment import run_one
from simulations.experiment.provenance import provenance
from simulations.lab.host.binaries import ensure
from simulations.lab.session.live_result import live_experiment
from simulations.lab.session.report import LiveRun, lab_result
from simulations.lab.session.run import MAX_LAG_S, Options, run
from simulations.lab.session.view import LineView
from simulations.policies.sluice import SluiceSettings
from simulations.results.results import RunResult
from simulations.scenario.scenario import Scenario, load_scenario

FOLDER = Path(__file__).parent / "fidelity"
SCENARIOS = ("steady", "step", "bursty", "roofline", "continuous", "endless", "neighbours")
SERVICE, OF_SERVICE = "speech", ", reference service"
STEP_S = 50.0
REACTION = "cycles to react to a step"
PIPELINE = PipelineKey("speech/captions")
REPORTED = Path(__file__).parents[2] / "simulations" / "report" / "fidelity.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One scenario and seed: what the simulator said, what the lab did, and the p95 of steady windows in both."""

    scenario: str
    seed: int
    simulated: dict[str, float | None]
    live: dict[str, float | None]
    windows: list[tuple[float, float]]
    windows_alike: list[tuple[float, float]]
    pass_ratios: list[tuple[float, float]] = field(default_factory=list)


def live(scenario: Scenario, seed: int, interval_s: float) -> RunResult | None:
    """Return what a live run came to; None where the machine was too busy for it, twice."""
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="sluice-fidelity-") as folder:
            options = Options(seed=seed, interval_s=interval_s)
            view = LineView(Console(file=io.StringIO()))
            with run(scenario, options, Path(folder), ensure(view.say), view) as (left, _):
                found = _of_lab(left, scenario, seed)
        if left.generator_lag_p99_s <= MAX_LAG_S:
            return found
        print(f"  late by {1e3 * left.generator_lag_p99_s:.1f} ms (p99)", flush=True)
    return None


def _of_lab(left: LiveRun, scenario: Scenario, seed: int) -> RunResult:
    told = provenance(scenario, ["sluice", "lab", "run"])
    experiment = live_experiment(left, lab_result(left), seed=seed, policy="sluice", provenance=told)
    (found,) = experiment.results
    return found


def measures(result: RunResult, interval_s: float, *, step: bool) -> dict[str, float | None]:
    """Return what is compared of a run; the cycles to react only where the load has a `step` to react to."""
    series = result.series
    placements = [each for pipeline in series.pipelines for each in pipeline.placements]
    hours = sum(
        sum(count * length for count, length in zip(each.ready, series.length_s, strict=True)) for each in placements
    )
    ups = [
        entry.t_s
        for entry in result.decisions
        if entry.t_s >= STEP_S and any(change.after > change.before for change in entry.changes)
    ]
    return {
        "p50": result.p50_s,
        "p95": result.p95_s,
        "cost": result.cost,
        "replica-hours": hours / 3600,
        REACTION: (ups[0] - STEP_S) / interval_s if step and ups else None,
    }


def steady_windows(one: RunResult, other: RunResult, *, alike: bool) -> list[tuple[float, float]]:
    """Return the p95 of windows in which, and in the one before, neither run changed a replica.

    With `alike` only of those in which both had the same ones.
    """
    placements = sorted(_replicas(one).keys() | _replicas(other).keys())
    none = [0] * len(one.series.t_s)  # one run may lack a variant that the other never measured
    counts = [np.array([_replicas(result).get(name, none) for name in placements]) for result in (one, other)]
    quiet = np.logical_and(*map(_quiet, counts))
    if alike:
        quiet &= np.all(counts[0] == counts[1], axis=0)
    (mine,), (theirs,) = one.series.pipelines, other.series.pipelines
    return [
        (p95_s, live_s)
        for still, p95_s, live_s in zip(quiet, mine.p95_s, theirs.p95_s, strict=True)
        if still and p95_s is not None and live_s is not None
    ]


def _replicas(result: RunResult) -> Mapping[tuple[str, str], Sequence[int]]:
    """Return what is asked for in each window, by stage and placement."""
    placements = [each for pipeline in result.series.pipelines for each in pipeline.placements]
    return {(str(each.stage), str(each.placement)): each.desired for each in placements}


def _quiet(counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    moved = np.concatenate([[True], np.any(np.diff(counts, axis=1) != 0, axis=0)])
    quiet: NDArray[np.bool_] = ~(moved | np.concatenate([[True], moved[:-1]]))
    return quiet


def errors(pairs: Sequence[tuple[float, float]]) -> tuple[float, float | None, float]:
    """Return mean and nine-of-ten of |simulated / live − 1|, and the mean with its sign."""
    off = np.array([simulated / lived - 1 for simulated, lived in pairs])
    tail = float(np.percentile(np.abs(off), 90)) if len(off) >= 10 else None
    return float(np.abs(off).mean()), tail, float(off.mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=(*SCENARIOS, SERVICE), default=None)
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between the operator's cycles, in both")
    parser.add_argument("--write", action="store_true", help="state these errors in every report")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[Comparison] = []
    for name in [options.only] if options.only else (*SCENARIOS, SERVICE):
        if name == SERVICE:
            found += [one for seed in range(1, options.seeds + 1) for one in service(seed, options.interval)]
            continue
        scenario = load_scenario(FOLDER / f"{name}.yaml")
        for seed in range(1, options.seeds + 1):
            settings = SluiceSettings(interval_s=options.interval)
            simulated = run_one(scenario, policy="sluice", seed=seed, settings=settings)
            lived = live(scenario, seed, options.interval)
            if lived is None:
                print(f"{name:8} {seed}  left out: this machine was too busy", flush=True)
                continue
            one = Comparison(
                scenario=name,
                seed=seed,
                simulated=measures(simulated, options.interval, step=name == "step"),
                live=measures(lived, options.interval, step=name == "step"),
                windows=steady_windows(simulated, lived, alike=False),
                windows_alike=steady_windows(simulated, lived, alike=True),
            )
            found.append(one)
            print(f"{name:8} {seed}  " + "  ".join(_words(one, what) for what in one.simulated), flush=True)
    report = summary([one for one in found if one.scenario != SERVICE])
    report += service_summary([one for one in found if one.scenario == SERVICE])
    for row in report:
        tail = "" if row["nine_of_ten"] is None else f", nine of ten within {row['nine_of_ten']:.1%}"
        print(f"{row['quantity']:28} mean {row['mean']:.1%}{tail}, bias {row['bias']:+.1%}, {row['count']} compared")
    if options.json:
        options.json.write_text(json.dumps({"comparisons": [asdict(one) for one in found], "errors": report}, indent=1))
    if options.write and options.only in {None, SERVICE}:
        errors_found = [{name: row[name] for name in ("quantity", "mean", "nine_of_ten")} for row in report]
        if options.only:  # its errors are apart from the others
            known = json.loads(REPORTED.read_text())["errors"]
            errors_found = [own for own in known if not own["quantity"].endswith(OF_SERVICE)] + errors_found
        stated = {
            "command": shlex.join(["make", "fidelity", f"ARGS=--seeds {options.seeds}"]),
            "scenarios": [*SCENARIOS, SERVICE],
            "seeds": options.seeds,
            "errors": errors_found,
        }
        REPORTED.write_text(json.dumps(stated, indent=1) + "\n")
    return 0


def service(seed: int, interval_s: float) -> Iterator[Comparison]:
    """Yield the comparison of the reference service with servers of the laws that were learned of it."""
    for _ in range(2):
        live_one = lived(seed, interval_s)
        if live_one.lag_p99_s <= SERVICE_LAG_S:
            break
        print(f"  late by {1e3 * live_one.lag_p99_s:.1f} ms (p99)", flush=True)
    else:
        print(f"{SERVICE:8} {seed}  left out: this machine was too busy", flush=True)
        return
    one = run_one(
        simulated(live_one.learned), policy="sluice", seed=seed, settings=SluiceSettings(interval_s=interval_s)
    )
    for name, document in live_one.learned.items():
        for line in laws(document):
            print(f"{SERVICE:8} {seed}  learned of {name}: {line}", flush=True)
    found = Comparison(
        scenario=SERVICE,
        seed=seed,
        simulated=measures(one, interval_s, step=False),
        live=measures(live_one.result, interval_s, step=False),
        windows=steady_windows(one, live_one.result, alike=False),
        windows_alike=steady_windows(one, live_one.result, alike=True),
        pass_ratios=[(own.predicted, own.measured) for own in live_one.heard.pass_ratio],
    )
    print(f"{SERVICE:8} {seed}  " + "  ".join(_words(found, what) for what in found.simulated), flush=True)
    yield found


def laws(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a manifest declares of each placement, as text."""
    for stage in document["spec"]["stages"]:
        for placement in stage["placements"]:
            for own in placement.get("variants", [placement]):
                variant = f" {own['name']}" if "name" in own else ""
                yield f"{stage['name']}{variant} {own['serviceTime']}, pass ratio {stage.get('passRatio', '–')}"


def service_summary(found: Sequence[Comparison]) -> list[dict[str, float | str | int | None]]:
    """Return the errors of the reference service: those of the lab's own workers are apart from them."""
    pairs = {
        "p95 of steady windows": [pair for one in found for pair in one.windows],
        "p95 on equal replicas": [pair for one in found for pair in one.windows_alike],
        "cost": [(s, lived_cost) for one in found if (s := one.simulated["cost"]) and (lived_cost := one.live["cost"])],
        "pass ratio": [pair for one in found for pair in one.pass_ratios],
    }
    return list(_rows({what + OF_SERVICE: own for what, own in pairs.items()}))


def _words(one: Comparison, what: str) -> str:
    simulated, lived = one.simulated[what], one.live[what]
    said = [("–" if value is None else f"{value:.4g}") for value in (simulated, lived)]
    return f"{what} {said[0]} / {said[1]}"


def summary(found: Sequence[Comparison]) -> list[dict[str, float | str | int | None]]:
    pairs = {
        "p95 of steady windows": [pair for one in found for pair in one.windows],
        "the same, on equal replicas": [pair for one in found for pair in one.windows_alike],
        **{
            f"p95 of steady windows, {name}": [pair for one in found if one.scenario == name for pair in one.windows]
            for name in ("roofline", "continuous", "endless", "neighbours")
        },
    }
    for what in found[0].simulated if found else ():
        values = [(one.simulated[what], one.live[what]) for one in found]
        pairs[what] = [(s, lived) for s, lived in values if s is not None and lived is not None and lived > 0]
    return list(_rows(pairs))


def _rows(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> Iterator[dict[str, float | str | int | None]]:
    for what, compared in pairs.items():
        if compared:
            mean, tail, bias = errors(compared)
            if math.isfinite(mean):
                yield {"quantity": what, "mean": mean, "nine_of_ten": tail, "bias": bias, "count": len(compared)}


if __name__ == "__main__":
    sys.exit(main())
