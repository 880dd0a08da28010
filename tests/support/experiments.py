"""Made-up experiments for tests of results and reports: every number follows from the arguments, none was simulated."""

import math
from collections.abc import Sequence
from pathlib import Path

from controller.core.state.spec import DemandUnit
from simulations.results.results import (
    BoundResult,
    DecisionEntry,
    Experiment,
    PipelineSeries,
    PlacementChange,
    PlacementSeries,
    Provenance,
    RunResult,
    RunSeries,
    SelfCheck,
    Tuning,
)
from simulations.results.users import Users
from simulations.scenario.scenario import Scenario, load_scenario

CONTRACT = Path(__file__).parents[1] / "contract"
POLICIES = {  # cost and missed share against those of sluice
    "sluice": (1.0, 1.0),
    "static-peak": (2.1, 0.2),
    "hpa": (1.18, 9.0),
    "keda": (1.25, 6.0),
    "kpa": (1.3, 5.0),
    "ray-serve": (1.27, 7.0),
    "flink": (1.05, 14.0),
    "wva": (1.4, 4.0),
    "inferno": (1.12, 12.0),
    "dynamo": (1.09, 10.0),
    "inferline": (1.22, 2.5),
    "plus-one": (0.93, 40.0),
}


def a_check(*, name: str = "M/M/3: mean wait", ok: bool = True) -> SelfCheck:
    return SelfCheck(name=name, expected=0.12, simulated=0.1214, half_width=0.002, ok=ok)


def a_scenario() -> Scenario:
    return load_scenario(CONTRACT / "scenario.yaml")


def a_series(*, windows: int = 6, load_rps: float = 400.0, cost: float = 10.0, missed: float = 0.0) -> RunSeries:
    """One pipeline whose load goes up and down once; `missed` is the share of windows that miss the SLA."""
    waves = [0.5 - 0.5 * math.cos(2 * math.pi * i / max(windows, 1)) for i in range(windows)]
    jitter = [((i * 7919) % 101) / 101 for i in range(windows)]
    offered = tuple(load_rps * (0.15 + wave) + 20 * j for wave, j in zip(waves, jitter, strict=True))
    met = tuple(j >= missed for j in jitter)
    spend = tuple(cost * (0.4 + 0.6 * round(wave * 8) / 8) for wave in waves)
    counts = tuple(1 + round(9 * wave) for wave in waves)
    late = tuple(1 + round(9 * waves[max(i - 3, 0)]) for i in range(windows))
    return RunSeries(
        t_s=tuple(120.0 + 10 * i for i in range(windows)),
        length_s=(10.0,) * windows,
        calm=(True,) * windows,
        pipelines=(
            PipelineSeries(
                pipeline="speech/live-captions",
                sla_s=(0.25,) * windows,
                percentile=(95.0,) * windows,
                offered_rps=offered,
                served_rps=tuple(0.45 * rate for rate in offered),
                filtered_rps=tuple(0.55 * rate for rate in offered),
                shed_rps=(0.0,) * windows,
                refused_rps=(0.0,) * windows,
                lost_rps=(0.0,) * windows,
                p95_s=tuple(0.12 + 0.1 * j if ok else 0.3 + 2 * j for j, ok in zip(jitter, met, strict=True)),
                met=met,
                spend_per_hour=tuple(value * 1.1 for value in spend),
                cost_per_hour=spend,
                budget_per_hour=(20.0,) * windows,
                placements=tuple(
                    PlacementSeries(
                        stage=stage,
                        placement=pool,
                        desired=counts,
                        ready=late,
                        cost_per_hour=tuple(value / 6 for value in spend),
                    )
                    for stage, pool in (
                        ("vad", "cpu"),
                        ("encoder", "inferentia"),
                        ("encoder", "gpu"),
                        ("decoder", "inferentia"),
                        ("decoder", "gpu"),
                        ("lm", "gpu"),
                    )
                ),
            ),
        ),
        price_per_hour={
            "cpu": (0.34,) * windows,
            "inferentia": (0.76,) * windows,
            "gpu": tuple(1.2 if i < windows * 3 // 4 else 1.6 for i in range(windows)),
        },
    )


def some_users(*, share: float = 0.995, streams: float = 400.0, unit: DemandUnit = DemandUnit.STREAMS) -> Users:
    """Users of whom `share` were served as promised, half of the others were late, and the rest lost."""
    return Users(
        pipeline="speech/live-captions",
        unit=unit,
        promised_share=0.95,
        offered=streams,
        as_promised=streams * share,
        refused=0.0,
        late=streams * (1 - share) / 2,
        lost=streams * (1 - share) / 2,
    )


def a_result(
    policy: str = "sluice",
    *,
    seed: int = 1,
    what_if: str | None = None,
    tuning: Tuning = Tuning.DEFAULT,
    cost: float = 10.0,
    met: float = 0.996,
    violations: int = 0,
    windows: int = 6,
    decisions: int = 2,
) -> RunResult:
    return RunResult(
        policy=policy,
        tuning=tuning,
        what_if=what_if,
        seed=seed,
        cost=cost,
        windows=windows,
        sla_windows_met=met,
        sla_windows_met_admitted=met,
        sla_windows_met_calm=min(1.0, met + 0.002),
        within_sla_share=met - 0.001,
        p50_s=0.09,
        p95_s=0.19,
        p99_s=0.31,
        offered=1000,
        served=440,
        filtered=550,
        late=0,
        refused=0,
        shed=3,
        lost=5,
        in_flight=2,
        sessions_cut=4,
        out_of_memory=0,
        replica_changes=31,
        cap_violations=violations,
        simulated_s=3000.0,
        wall_s=2.5,
        users=(some_users(share=met - 0.001),),
        series=a_series(windows=windows, cost=cost, missed=1 - met),
        decisions=tuple(_decision(i) for i in range(decisions)),
    )


def an_experiment(
    *results: RunResult, bounds: Sequence[BoundResult] | None = None, checks: Sequence[SelfCheck] = (a_check(),)
) -> Experiment:
    """Return an experiment of `results`, one of Sluice's by default, with a bound of 8 USD for every seed."""
    found = results or (a_result(),)
    seeds = tuple(dict.fromkeys(result.seed for result in found))
    what_ifs = tuple(dict.fromkeys(result.what_if for result in found))
    if bounds is None:
        windows = len(found[0].series.t_s)
        bounds = [
            BoundResult(what_if=w, seed=s, cost=8.0, windows_share=0.995, cost_per_hour=(7.0,) * windows)
            for w in what_ifs
            for s in seeds
        ]
    return Experiment(
        scenario="captions-morning",
        seeds=seeds,
        results=found,
        bounds=tuple(bounds),
        self_checks=tuple(checks),
        provenance=Provenance(
            command=("sluice", "simulate", "scenario.yaml"),
            versions={"sluice": "0.1.0", "python": "3.11.2"},
            sha256={"scenario.yaml": "ab" * 32},
        ),
    )


def a_whole_experiment(*, windows: int = 288, seeds: int = 3, decisions: int = 120) -> Experiment:
    """All policies with default and trained settings over several seeds, and Sluice under three what-ifs."""
    results = []
    for policy, (cost, missed) in POLICIES.items():
        for tuning in (
            (Tuning.DEFAULT, Tuning.TRAINED) if policy not in {"static-peak", "sluice"} else (Tuning.DEFAULT,)
        ):
            better = 0.6 if tuning is Tuning.TRAINED else 1.0
            results += [
                a_result(
                    policy,
                    seed=seed,
                    tuning=tuning,
                    cost=9.9 * cost * (1 + 0.02 * (seed - 2)),
                    met=max(0.0, 1 - 0.004 * missed * better * (1 + 0.2 * (seed - 2))),
                    violations=int(policy == "kpa" and seed == 2),
                    windows=windows,
                    decisions=decisions,
                )
                for seed in range(1, seeds + 1)
            ]
    for name, cost, met in (("half-budget", 7.4, 0.71), ("no-inferentia", 14.2, 0.994), ("double-load", 18.3, 0.99)):
        results += [
            a_result(seed=s, what_if=name, cost=cost + 0.1 * s, met=met, windows=windows, decisions=decisions)
            for s in range(1, seeds + 1)
        ]
    checks = [a_check(name=name) for name in ("M/M/3: mean wait", "M/D/1: mean wait", "Little's law: L = λW")]
    return an_experiment(*results, checks=checks)


def _decision(index: int) -> DecisionEntry:
    changes = (
        ()
        if index % 3 == 2
        else (PlacementChange(stage="encoder", placement="gpu", before=index % 7, after=index % 7 + 1),)
    )
    return DecisionEntry(
        t_s=120.0 + 15 * index,
        pipeline="speech/live-captions",
        changes=changes,
        reason=f"encoder {index % 7}→{index % 7 + 1} on gpu (demand): demand 410 → 520 streams; p95 180 ms of 250 ms"
        if changes
        else "the scale-down window still holds a higher demand",
    )
