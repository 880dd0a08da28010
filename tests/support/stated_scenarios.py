"""The stated scenarios and what is asked of Sluice there, for the benchmarks that run them."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path

from controller.resources.pipeline import SpeechPipeline
from controller.resources.placement import Placement, ServiceTime
from controller.resources.pool import ComputePool
from simulations.scenario.scenario import NodeStartup, Scenario, load_scenario

SCENARIOS = ("steady", "bursty", "daily")
COLD_START = "cold-start"
ENDLESS = "endless"
JUMP = "jump"
LEAST_WINDOWS = 0.995
SLOW_STARTS: Mapping[str, tuple[int, int]] = {
    "start-1m": (40, 20),
    "start-7m": (240, 180),
    "start-13m": (600, 180),
}
"""Seconds that a replica takes to start, and those that a new node takes before, as for large models on nodes that are
launched. The first is the same load with a start-up as in the other scenarios, to which the others are compared."""
MOST_OVER_QUICK = 1.10
"""The most that a slow start may cost beyond the bound, over what the quick one costs beyond its bound."""
_RUN, _UNTIL_SETTLED = "100m", "40m"
TRUE_LAWS: Mapping[str, Mapping[tuple[str, str], Mapping[str, object]]] = {
    "rooflines": {
        ("encoder", "inferentia"): {"floor": "22ms", "fixed": "2ms", "perItem": "4500us", "cv": "0.15"},
        ("encoder", "gpu"): {"points": {"1": "11ms", "4": "12ms", "8": "15ms", "16": "24ms"}, "cv": "0.15"},
        ("decoder", "inferentia"): {"floor": "40ms", "fixed": "6ms", "perItem": "7ms", "cv": "0.4"},
        ("decoder", "gpu"): {"points": {"1": "16ms", "4": "17ms", "8": "22ms", "16": "36ms"}, "cv": "0.4"},
        ("lm", "gpu"): {"floor": "28ms", "fixed": "12ms", "perItem": "2200us", "cv": "0.5"},
    },
    "prefill": {("lm", "gpu"): {"fixed": "15ms", "perItem": "1ms", "prefill": "1ms", "cv": "0.5"}},
}
"""The steady load with servers whose true service times are not lines, by stage and pool."""


def stated(name: str) -> Scenario:
    """Return the stated scenario for reports, or the steady one with one of the `SLOW_STARTS`."""
    if name in TRUE_LAWS:
        return _with_laws(name, TRUE_LAWS[name])
    if name in SLOW_STARTS:
        return _slow_start(name, *SLOW_STARTS[name])
    return load_scenario(Path(str(resources.files("simulations.scenarios"))) / name / "scenario.yaml")


def seeds_of(scenario: Scenario, seeds: str | None) -> tuple[int, ...]:
    """Return the seeds in `seeds`, separated by commas; None: those of the scenario."""
    return tuple(scenario.file.seeds) if seeds is None else tuple(int(seed) for seed in seeds.split(","))


def number(value: float | None, form: str) -> str:
    """Return a number for a table, a dash for none."""
    return "–" if value is None else format(value, form)


def _slow_start(name: str, startup_s: int, launch_s: int) -> Scenario:
    scenario = stated("steady")
    times = NodeStartup(min=f"{launch_s}s", max=f"{launch_s}s")
    file = {"name": name, "duration": _RUN, "warmup": _UNTIL_SETTLED, "node_startup": times}
    return replace(
        scenario,
        file=scenario.file.model_copy(update=file),
        pipelines=tuple(_with_startup(each, f"{startup_s}s") for each in scenario.pipelines),
        pools=tuple(map(_launched, scenario.pools)),
    )


def _with_laws(name: str, laws: Mapping[tuple[str, str], Mapping[str, object]]) -> Scenario:
    scenario = stated("steady")

    def with_law(stage: str, placement: Placement) -> Placement:
        law = laws.get((stage, placement.pool))
        return (
            placement if law is None else placement.model_copy(update={"service_time": ServiceTime.model_validate(law)})
        )

    def changed(pipeline: SpeechPipeline) -> SpeechPipeline:
        stages = [
            stage.model_copy(update={"placements": [with_law(stage.name, each) for each in stage.placements or ()]})
            for stage in pipeline.spec.stages
        ]
        return pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update={"stages": stages})})

    file = scenario.file.model_copy(update={"name": name})
    return replace(scenario, file=file, pipelines=tuple(map(changed, scenario.pipelines)))


def _with_startup(pipeline: SpeechPipeline, startup: str) -> SpeechPipeline:
    stages = [
        stage.model_copy(
            update={"placements": [each.model_copy(update={"startup": startup}) for each in stage.placements or ()]}
        )
        for stage in pipeline.spec.stages
    ]
    # Shares of nodes, as in the other scenarios.
    budget = pipeline.spec.budget.model_copy(update={"basis": "Replicas"})
    return pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update={"stages": stages, "budget": budget})})


def _launched(pool: ComputePool) -> ComputePool:
    """Return the pool with nodes that are launched when they are needed."""
    capacity = pool.spec.capacity.model_copy(update={"node_pool": pool.metadata.name})
    return pool.model_copy(update={"spec": pool.spec.model_copy(update={"capacity": capacity})})
