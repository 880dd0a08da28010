"""The rows of the fault matrix with traffic: a whole run on a lab of its own, with one property of real clusters each.

The pipeline has the stages `asr` and `lm`. Its load doubles after a quarter of the run, and in some rows falls in the
last quarter. The cycle is 1 s, and durations are a fifteenth of those of production: scrapes every 2 s here are scrapes
every 30 s there.
"""

import copy
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from story import Column, Judge, Row
from urllib3.exceptions import HTTPError
from world import GROUP, NAMESPACE, VERSION, WRAPPER, World

from controller.kube.gateway import PIPELINES
from simulations.lab.cluster.cluster import OPERATOR
from simulations.lab.host.binaries import ensure
from simulations.lab.session.report import LiveRun, item_scores
from simulations.lab.session.run import Options
from simulations.lab.session.run import run as run_on_a_lab
from simulations.lab.session.view import Moment
from simulations.results.scoring import Window
from simulations.scenario.scenario import load_scenario

NAME = "captions"
BUDGET = 3.0
PRICE, PER_INSTANCE, INSTANCES = 0.8, 4, 5
CALM, BUSY, QUIET = 25.0, 50.0, 6.0
"""The load at first, later, and in the last quarter of rows whose load falls, in requests/s."""
WINDOW_S = 5.0
LAST_WINDOWS = 3
"""The windows at the end of a run, or before its load falls, that must be met."""
_SERIES = f'namespace="{NAMESPACE}", pipeline="{NAME}"'
_EPSILON = 1e-6


# -- the manifests


def stage(name: str, window_s: float, least: int, **fields: Any) -> dict[str, Any]:
    """Return a stage on the only pool, with `least` replicas; `fields` are those of its metrics."""
    return {
        "name": name,
        "metrics": {"window": f"{window_s:g}s", **fields},
        "placements": [
            {
                "pool": "plenty",
                "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "replicas": {"min": least, "max": 12},
                "perInstance": PER_INSTANCE,
                "serviceTime": {"fixed": {"asr": "50ms", "lm": "25ms"}[name], "cv": "0.3"},
                "startup": "300ms",
            }
        ],
    }


def spec(window_s: float, stages: Sequence[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return the spec of the pipeline; `window_s` is the window of its queries."""
    at_once = {"stabilization": "0s", "maxStep": {"percent": 100, "replicas": 100}}
    within = f"[{window_s:g}s]"
    return {
        "demand": {"unit": "Requests", "query": f"sum(rate(sluice_ingress_requests_total{{{_SERIES}}}{within}))"},
        "sla": {
            "latency": "500ms",
            "query": "histogram_quantile(0.95, sum by (le) "
            f"(rate(sluice_ingress_latency_seconds_bucket{{{_SERIES}}}{within})))",
        },
        "budget": {"perHour": f"{BUDGET:g}"},
        "scaling": {"scaleUp": at_once, "scaleDown": {**at_once, "stabilization": "4s", "drain": "1s"}},
        "stages": [{**stages[0]}, {**stages[1], "after": [stages[0]["name"]]}] if len(stages) > 1 else list(stages),
        **fields,
    }


def _manifests(pipeline: Mapping[str, Any], instances: int) -> str:
    pool = {
        "apiVersion": PIPELINES.api_version,
        "kind": "ComputePool",
        "metadata": {"name": "plenty"},
        "spec": {
            "device": "CPU",
            "nodeSelector": {"sluice.dev/pool": "plenty"},
            "price": {"perHour": f"{PRICE:g}"},
            "capacity": {"instances": instances},
            "unavailable": {"pendingDeadline": "4s", "backoff": {"initial": "4s", "max": "8s"}},
        },
    }
    resource = {
        "apiVersion": PIPELINES.api_version,
        "kind": "SpeechPipeline",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": pipeline,
    }
    return yaml.safe_dump_all([pool, resource])


# -- a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """A run. `scenario` are further fields of its scenario file; `window_s` is that of the stages' metrics and, without
    `query_s`, of the queries.

    `load_falls`: in the last quarter of the run. `stages` are the fields of each stage's metrics.
    """

    scenario: Mapping[str, Any] = field(default_factory=dict)
    window_s: float = 8.0
    query_s: float | None = None
    duration_s: float = 60.0
    load_falls: bool = False
    instances: int = INSTANCES
    busy: float = BUSY
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"asr": {}, "lm": {}})
    bounds: Mapping[str, int] = field(default_factory=dict)
    """The least replicas of a stage, where they are not 1."""
    pipeline: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the spec of the pipeline that differ."""

    @property
    def spec(self) -> dict[str, Any]:
        """Return the spec of the pipeline."""
        stages = [
            stage(name, self.window_s, self.bounds.get(name, 1), **fields) for name, fields in self.stages.items()
        ]
        return copy.deepcopy(spec(self.query_s or self.window_s, stages, **self.pipeline))


@dataclass(slots=True)
class Told:
    """The view of a run: keeps the statuses of the pipeline, with their times."""

    statuses: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    _api: client.ApiClient | None = None
    _next_s: float = 0.0

    def close(self) -> None:
        """Close the connection to the cluster."""
        if self._api is not None:
            self._api.close()

    def say(self, text: str) -> None:
        """Find the cluster in a line of progress."""
        if found := re.search(r"is up: kubectl --kubeconfig (\S+)", text):
            self._api = config.new_client_from_config(found[1])

    def show(self, moment: Moment) -> None:
        """Read the status, about once a second."""
        if moment.seen.t_s < self._next_s or self._api is None:
            return
        self._next_s = moment.seen.t_s + 1.0
        try:
            resource = client.CustomObjectsApi(self._api).get_namespaced_custom_object(
                GROUP, VERSION, NAMESPACE, "speechpipelines", NAME, _request_timeout=(3, 5)
            )
        except (client.ApiException, HTTPError):
            return
        self.statuses.append((moment.seen.t_s, resource.get("status", {})))

    def first(self, *words: str, since_s: float = 0.0) -> float | None:
        """Return the time of the first status with all `words` in it, None without one."""
        found = (at_s for at_s, status in self.statuses if at_s >= since_s and all(w in str(status) for w in words))
        return next(found, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """A finished run."""

    live: LiveRun
    told: Told
    windows: tuple[Window, ...]

    def desired(self, name: str) -> list[int]:
        """Return the desired replicas of a stage, in order of time."""
        return [
            replicas.desired
            for seen in self.live.observations
            for (_, own, _), replicas in seen.placements.items()
            if own == name
        ]


def lived(world: World, subject: Property) -> Lived:
    """Run the scenario of a row."""
    folder = world.folder / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    scenario = load_scenario(_written(folder, subject))
    told = Told()
    program = OPERATOR if world.broken is None else (str(WRAPPER), "--break", world.broken, "--")
    options = Options(seed=1, interval_s=1.0, operator_program=program)
    with closing(told), run_on_a_lab(scenario, options, folder / "lab", ensure(_say), told) as (live, _):
        (score,) = item_scores(live).values()
    return Lived(live=live, told=told, windows=score.windows)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _written(folder: Path, subject: Property) -> Path:
    seconds = range(int(subject.duration_s))
    levels = [_level(subject, second / subject.duration_s) for second in seconds]
    (folder / "load.csv").write_text(
        "t_s,rate_per_s\n" + "".join(f"{at},{level}\n" for at, level in zip(seconds, levels, strict=True))
    )
    (folder / "manifests.yaml").write_text(_manifests(subject.spec, subject.instances))
    path = folder / "scenario.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": "row",
                "manifests": ["manifests.yaml"],
                "duration": f"{subject.duration_s:g}s",
                "window": f"{WINDOW_S:g}s",
                "load": [{"pipeline": f"{NAMESPACE}/{NAME}", "trace": "load.csv", "column": "rate_per_s"}],
                **subject.scenario,
            }
        )
    )
    return path


def _level(subject: Property, share: float) -> float:
    if subject.load_falls and share >= 0.75:
        return QUIET
    return CALM if share < 0.25 else subject.busy


# -- checks


Check = Callable[[Lived, Judge], None]


def within_caps(run: Lived, judge: Judge, *, desired_only: bool = False) -> None:
    """Check that the spend never exceeded the budget, nor the desired replicas the capacity of the pool.

    With `desired_only`, pods beyond the desired replicas are not counted: a roll-out creates them.
    """
    (pipeline,) = run.live.pipelines
    desired = [sum(r.desired for r in seen.placements.values()) for seen in run.live.observations]
    most = (
        max(desired) * PRICE / PER_INSTANCE
        if desired_only
        else max(seen.spend_per_hour[pipeline.key] for seen in run.live.observations)
    )
    budget = pipeline.budget_per_hour
    judge.hold(Column.CAPS, most <= budget + _EPSILON, f"${most:.2f} of ${budget:.2f}/h")


def served(run: Lived, judge: Judge, *, share: float = 1.0) -> None:
    """Check that the last windows of the busy load, those before `share` of the run, were met."""
    until_s = share * run.live.clock.duration_s
    last = [window for window in run.windows if window.t_s + window.length_s <= until_s][-LAST_WINDOWS:]
    p95 = ", ".join("lost" if window.p95_s is None else f"{window.p95_s * 1000:.0f} ms" for window in last)
    met = sum(window.met is True for window in run.windows)
    lag_ms = 1000 * run.live.generator_lag_p99_s
    judge.hold(
        Column.SERVED,
        len(last) == LAST_WINDOWS and all(window.met for window in last),
        f"p95 of the last windows: {p95}; {met} of {len(run.windows)} met; load {lag_ms:.0f} ms late",
    )


def never_down(run: Lived, judge: Judge) -> None:
    """Check that no desired replica was removed."""
    for name in run.live.pipelines[0].stages:
        counts = run.desired(name.name)
        down = any(after < before for before, after in pairwise(counts))
        judge.hold(Column.NEVER_DOWN, not down, f"{name.name} {' '.join(map(str, _without_repeats(counts)))}")


def named(run: Lived, judge: Judge, *words: str, since_s: float = 0.0, within_s: float) -> None:
    """Check that a status has all `words` by `within_s` after `since_s`."""
    at_s = run.told.first(*words, since_s=since_s)
    judge.hold(
        Column.REASON,
        at_s is not None and at_s <= since_s + within_s,
        f"{' and '.join(words)}: {'never' if at_s is None else f'after {at_s - since_s:.0f} s of {within_s:g} s'}",
    )


def _without_repeats(counts: Sequence[int]) -> list[int]:
    return [count for index, count in enumerate(counts) if index == 0 or counts[index - 1] != count]


def row(name: str, subject: Property, *checks: Check) -> Row:
    """Return the row of a run with a property."""

    def judged(world: World, judge: Judge) -> None:
        run = lived(world, subject)
        for check in checks:
            check(run, judge)
        judge.not_applicable(Column.ONE_WRITER, "one operator")
        judge.not_applicable(Column.RESTART, "shown without traffic")

    return Row(name=name, run=judged)


def blind(*words: str) -> Check:
    """Check a run whose metrics cannot be used: the status says so with `words`, and no replica is removed."""

    def check(run: Lived, judge: Judge) -> None:
        named(run, judge, *words, within_s=_READ_S)
        never_down(run, judge)

    return check


def rolled_out(run: Lived, judge: Judge) -> None:
    """Check a roll-out on a full pool: the SLA is met all the while, and it ends once there is room.

    Its pending pod makes the pool fail, so that Sluice may give up a replica of the stage for a while.
    """
    within_caps(run, judge, desired_only=True)
    served(run, judge, share=_BUSY_SHARE)
    end_s = run.live.clock.duration_s
    late = [seen for seen in run.live.observations if seen.t_s > end_s - _SOON_S] or run.live.observations[-1:]
    rolled = [r for seen in late for (_, name, _), r in seen.placements.items() if name == "asr"]
    whole = [r for r in rolled if r.existing == r.desired == r.ready]
    last = (whole or rolled)[-1]
    judge.hold(Column.RECOVERY, whole, f"asr {last.ready} ready, {last.existing} exist, {last.desired} desired")


def thrifty(run: Lived, judge: Judge) -> None:
    """Check that the spend in the end is far from the budget."""
    (pipeline,) = run.live.pipelines
    spend = run.live.observations[-1].spend_per_hour[pipeline.key]
    judge.hold(Column.SERVED, spend <= _THRIFTY * BUDGET, f"${spend:.2f} of ${BUDGET:.2f}/h at the end")


def slow_gateway(run: Lived, judge: Judge) -> None:
    """Check a run whose overhead alone exceeds the SLA: the status says so, and it does not empty the budget."""
    named(run, judge, "outside the stages", within_s=_TRIAL_S)
    within_caps(run, judge)
    thrifty(run, judge)


def overloaded(run: Lived, judge: Judge) -> None:
    """Check a run whose load exceeds the budget and is not shed: the status names the limit, and it is served again."""
    named(run, judge, "'limitedBy': 'Budget'", since_s=0.25 * run.live.clock.duration_s, within_s=_SOON_S)
    within_caps(run, judge)
    served(run, judge)


_SOON_S = 12.0
"""The time for a window of the metrics to pass, and a cycle."""
_READ_S = 20.0
"""The time until a replica must report: four scrapes, here of 4 s, and a cycle."""
_TRIAL_S = 45.0
"""The time until all windows are full after the load has doubled, so that the overhead is measured."""
_THRIFTY = 0.9
_BUSY_SHARE = 0.75
_ROOM_S = 40.0
_SEVERAL: Mapping[str, Any] = {"otherModels": {"lm": ["preprocess", "postprocess"]}}


def _of_triton(**metrics: str) -> Mapping[str, Mapping[str, str]]:
    return {"asr": {}, "lm": {"preset": "triton", **metrics}}


def _full_pool() -> Property:
    """Return a run whose replicas fill their pool when a roll-out begins; later they need not be as many."""
    before = Property(bounds={"asr": 5, "lm": 3}, instances=2)
    room = {f"SpeechPipeline/{NAMESPACE}/{NAME}": {"spec": {"stages": replace(before, bounds={}).spec["stages"]}}}
    faults = [{"at": "20s", "rollOut": "asr"}, {"at": f"{_ROOM_S:g}s", "set": room}]
    return replace(before, scenario={"faults": faults}, load_falls=True, duration_s=75.0)


RUN_ROWS: tuple[Row, ...] = (
    row("declared: one stage 0.2 x its time", Property(scenario={"profileError": {"asr": "0.2"}}), within_caps, served),
    row(
        "declared: all stages 5 x their time",
        Property(scenario={"profileError": {"asr": 5, "lm": 5}}),
        within_caps,
        served,
        thrifty,
    ),
    row("declared: nothing", Property(scenario={"hideProfiles": True}), within_caps, served),
    row("time outside the stages", Property(scenario={"overhead": "300ms"}), within_caps, served),
    row("time outside the stages above the SLA", Property(scenario={"overhead": "600ms"}), slow_gateway),
    row("unequal replicas", Property(scenario={"speedSpread": "0.5"}), within_caps, served),
    row(
        "several tokens per answer",
        Property(
            scenario={"firstToken": {"lm": "0.2"}},
            stages={"asr": {}, "lm": {"preset": "vllm", "answer": "Whole"}},
        ),
        within_caps,
        served,
    ),
    row(
        "several models, one selected",
        Property(scenario=_SEVERAL, stages=_of_triton(model="lm")),
        within_caps,
        served,
    ),
    row(
        "several models, none selected",
        Property(scenario=_SEVERAL, stages=_of_triton(), load_falls=True),
        blind("Ambiguous", "preprocess"),
        within_caps,
    ),
    row("roll-out on a full pool", _full_pool(), rolled_out),
    row(
        "scrapes every 30 s",
        Property(scenario={"scrapeInterval": "2s"}, window_s=8.0),
        within_caps,
        served,
    ),
    row(
        "scrapes every 60 s",
        Property(scenario={"scrapeInterval": "4s"}, window_s=16.0, duration_s=75.0),
        within_caps,
        served,
    ),
    row(
        "scrapes every 60 s, windows of 60 s",
        Property(scenario={"scrapeInterval": "4s"}, window_s=4.0, query_s=16.0, load_falls=True, duration_s=75.0),
        blind("WindowTooShort", "metrics.window: 4 s: must be at least two scrape intervals"),
        within_caps,
    ),
    row(
        "an ingress that does not shed",
        Property(
            scenario={"sheds": False},
            pipeline={"budget": {"perHour": "1.6"}},
            busy=100.0,
            load_falls=True,
            duration_s=80.0,
        ),
        overloaded,
    ),
)
