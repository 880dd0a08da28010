"""The rows of the fault matrix with traffic: whole runs on labs of their own, with properties of real clusters.

Each row is a pipeline with the stages `asr` and `lm` on a pool of its own. Rows whose properties can be side by side
share a run. The load of a pipeline doubles after a quarter of the run, and in some rows falls in the last quarter. The
cycle is 1 s, and durations are a fifteenth of those of production: scrapes every 2 s here are scrapes every 30 s there.
"""

import copy
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from story import Column, Judge, Row
from urllib3.exceptions import HTTPError
from world import GROUP, NAMESPACE, VERSION, WRAPPER, World

from controller.core.messages.sentences import HOLDS
from controller.core.state.decision import HoldReason
from controller.core.state.spec import PipelineSpec
from controller.kube.gateway import PIPELINES
from optimizer.model import PipelineKey
from simulations.lab.cluster.cluster import OPERATOR
from simulations.lab.host.binaries import ensure
from simulations.lab.session.report import LiveRun, item_scores
from simulations.lab.session.run import Options
from simulations.lab.session.run import run as run_on_a_lab
from simulations.lab.session.view import Moment
from simulations.results.scoring import Window
from simulations.scenario.scenario import load_scenario

BUDGET = 3.0
PRICE, PER_INSTANCE, INSTANCES = 0.8, 4, 5
CALM, BUSY, QUIET = 25.0, 50.0, 6.0
"""The load at first, later, and in the last quarter of rows whose load falls, in requests/s."""
WINDOW_S = 5.0
LAST_WINDOWS = 3
"""The windows at the end of a run that must be met."""
_EPSILON = 1e-6


# -- the manifests


def stage(pipeline: str, name: str, window_s: float, least: int, **fields: Any) -> dict[str, Any]:
    """Return a stage on the pool of its pipeline, with `least` replicas; `fields` are those of its metrics."""
    return {
        "name": name,
        "metrics": {"window": f"{window_s:g}s", **fields},
        "placements": [
            {
                "pool": pipeline,
                "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"{pipeline}-{name}"},
                "replicas": {"min": least, "max": 12},
                "perInstance": PER_INSTANCE,
                "serviceTime": {"fixed": {"asr": "50ms", "lm": "25ms"}[name], "cv": "0.3"},
                "startup": "300ms",
            }
        ],
    }


def spec(pipeline: str, window_s: float, sla: str, stages: Sequence[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return the spec of a pipeline; `window_s` is the window of its queries."""
    at_once = {"stabilization": "0s", "maxStep": {"percent": 100, "replicas": 100}}
    series, within = f'namespace="{NAMESPACE}", pipeline="{pipeline}"', f"[{window_s:g}s]"
    return {
        "demand": {"unit": "Requests", "query": f"sum(rate(sluice_ingress_requests_total{{{series}}}{within}))"},
        "sla": {
            "latency": sla,
            "query": "histogram_quantile(0.95, sum by (le) "
            f"(rate(sluice_ingress_latency_seconds_bucket{{{series}}}{within})))",
        },
        "budget": {"perHour": f"{BUDGET:g}"},
        "scaling": {"scaleUp": at_once, "scaleDown": {**at_once, "stabilization": "4s", "drain": "1s"}},
        "stages": [{**stages[0]}, {**stages[1], "after": [stages[0]["name"]]}],
        **fields,
    }


# -- a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """A row: the pipeline `name`, and what its run must show.

    `by_stage` are the fields of the scenario file that have a value for each stage. `window_s` is the window of the
    stages' metrics and, without `query_s`, of the queries. `load_falls`: in the last quarter of the run. `stages` are
    the fields of each stage's metrics, `bounds` its least replicas where they are not 1, `pipeline` the fields of the
    spec of the pipeline that differ.
    """

    row: str
    name: str
    checks: tuple["Check", ...]
    by_stage: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    window_s: float = 8.0
    query_s: float | None = None
    load_falls: bool = False
    instances: int = INSTANCES
    busy: float = BUSY
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"asr": {}, "lm": {}})
    bounds: Mapping[str, int] = field(default_factory=dict)
    sla: str = "500ms"
    pipeline: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> dict[str, Any]:
        """Return the spec of the pipeline."""
        stages = [
            stage(self.name, name, self.window_s, self.bounds.get(name, 1), **fields)
            for name, fields in self.stages.items()
        ]
        return copy.deepcopy(spec(self.name, self.query_s or self.window_s, self.sla, stages, **self.pipeline))

    @property
    def documents(self) -> list[dict[str, Any]]:
        """Return the pool and the pipeline."""
        pool = {
            "device": "CPU",
            "nodeSelector": {"sluice.dev/pool": self.name},
            "price": {"perHour": f"{PRICE:g}"},
            "capacity": {"instances": self.instances},
            "unavailable": {"pendingDeadline": "4s", "backoff": {"initial": "4s", "max": "8s"}},
        }
        own = {"apiVersion": PIPELINES.api_version}
        metadata = {"name": self.name, "namespace": NAMESPACE}
        return [
            {**own, "kind": "ComputePool", "metadata": {"name": self.name}, "spec": pool},
            {**own, "kind": "SpeechPipeline", "metadata": metadata, "spec": self.spec},
        ]

    def load(self, share: float) -> float:
        """Return the load in requests/s after `share` of the run."""
        if self.load_falls and share >= _BUSY_SHARE:
            return QUIET
        return CALM if share < _CALM_SHARE else self.busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of one lab, with its rows; `scenario` are further fields of its scenario file."""

    rows: tuple[Property, ...]
    scenario: Mapping[str, Any] = field(default_factory=dict)
    duration_s: float = 60.0
    seed: int = 1

    def written(self, folder: Path) -> Path:
        """Write the scenario file and what it names into `folder`; return its path."""
        seconds = range(int(self.duration_s))
        for row in self.rows:
            levels = (row.load(second / self.duration_s) for second in seconds)
            lines = (f"{at},{level}\n" for at, level in zip(seconds, levels, strict=True))
            (folder / f"{row.name}.csv").write_text("t_s,rate_per_s\n" + "".join(lines))
        documents = [document for row in self.rows for document in row.documents]
        (folder / "manifests.yaml").write_text(yaml.safe_dump_all(documents))
        by_stage: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            for name, values in row.by_stage.items():
                own = {f"{NAMESPACE}/{row.name}/{stage_name}": value for stage_name, value in values.items()}
                by_stage.setdefault(name, {}).update(own)
        document = {
            "name": "rows",
            "manifests": ["manifests.yaml"],
            "duration": f"{self.duration_s:g}s",
            "window": f"{WINDOW_S:g}s",
            "load": [
                {"pipeline": f"{NAMESPACE}/{row.name}", "trace": f"{row.name}.csv", "column": "rate_per_s"}
                for row in self.rows
            ],
            **by_stage,
            **self.scenario,
        }
        path = folder / "scenario.yaml"
        path.write_text(yaml.safe_dump(document))
        return path


@dataclass(slots=True)
class Told:
    """The view of a run: keeps the statuses of each pipeline, with their times."""

    statuses: dict[str, list[tuple[float, dict[str, Any]]]] = field(default_factory=dict)
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
        """Read the statuses, about once a second."""
        if moment.seen.t_s < self._next_s or self._api is None:
            return
        self._next_s = moment.seen.t_s + 1.0
        try:
            found = client.CustomObjectsApi(self._api).list_namespaced_custom_object(
                GROUP, VERSION, NAMESPACE, "speechpipelines", _request_timeout=(3, 5)
            )
        except (client.ApiException, HTTPError):
            return
        for item in found["items"]:
            own = self.statuses.setdefault(item["metadata"]["name"], [])
            own.append((moment.seen.t_s, item.get("status", {})))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """A pipeline of a finished run; `statuses` are its statuses with their times."""

    live: LiveRun
    pipeline: PipelineSpec
    statuses: Sequence[tuple[float, dict[str, Any]]]
    windows: tuple[Window, ...]

    def desired(self, name: str) -> list[int]:
        """Return the desired replicas of a stage, in order of time."""
        return [
            replicas.desired
            for seen in self.live.observations
            for (key, own, _), replicas in seen.placements.items()
            if (key, own) == (self.pipeline.key, name)
        ]

    def spend(self) -> list[float]:
        """Return the spend in USD per hour, in order of time."""
        return [seen.spend_per_hour[self.pipeline.key] for seen in self.live.observations]

    def first(self, *words: str, since_s: float = 0.0) -> float | None:
        """Return the time of the first status with all `words` in it, None without one."""
        found = (at_s for at_s, status in self.statuses if at_s >= since_s and all(w in str(status) for w in words))
        return next(found, None)


def lived(world: World, subject: Run) -> dict[str, Lived]:
    """Run the pipelines of all rows of a run; return each by the name of its row."""
    folder = world.folder / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    scenario = load_scenario(subject.written(folder))
    told = Told()
    program = OPERATOR if world.broken is None else (str(WRAPPER), "--break", world.broken, "--")
    options = Options(seed=subject.seed, interval_s=1.0, operator_program=program)
    with closing(told), run_on_a_lab(scenario, options, folder / "lab", ensure(_say), told) as (live, _):
        scores = item_scores(live)
    pipelines = {pipeline.key: pipeline for pipeline in live.pipelines}
    return {
        row.row: Lived(
            live=live, pipeline=pipelines[key], statuses=told.statuses.get(row.name, []), windows=scores[key].windows
        )
        for row in subject.rows
        for key in (PipelineKey(f"{NAMESPACE}/{row.name}"),)
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# -- checks


Check = Callable[[Lived, Judge], None]


def within_caps(run: Lived, judge: Judge, *, desired_only: bool = False) -> None:
    """Check that the spend never exceeded the budget, nor the desired replicas the capacity of the pool.

    With `desired_only`, pods beyond the desired replicas are not counted: a roll-out creates them.
    """
    stages = [run.desired(stage.name) for stage in run.pipeline.stages]
    most = max(map(sum, zip(*stages, strict=True))) * PRICE / PER_INSTANCE if desired_only else max(run.spend())
    budget = run.pipeline.budget_per_hour
    judge.hold(Column.CAPS, most <= budget + _EPSILON, f"${most:.2f} of ${budget:.2f}/h")


def served(run: Lived, judge: Judge, *, windows: int = LAST_WINDOWS) -> None:
    """Check that the last windows of the run were met."""
    last = run.windows[-windows:]
    p95 = ", ".join("lost" if window.p95_s is None else f"{window.p95_s * 1000:.0f} ms" for window in last)
    met = sum(window.met is True for window in run.windows)
    lag_ms = 1000 * run.live.generator_lag_p99_s
    judge.hold(
        Column.SERVED,
        len(last) == windows and all(window.met for window in last),
        f"p95 of the last windows: {p95}; {met} of {len(run.windows)} met; load {lag_ms:.0f} ms late",
    )


def never_down(run: Lived, judge: Judge) -> None:
    """Check that no desired replica was removed."""
    for stage in run.pipeline.stages:
        counts = run.desired(stage.name)
        down = any(after < before for before, after in pairwise(counts))
        judge.hold(Column.NEVER_DOWN, not down, f"{stage.name} {' '.join(map(str, _without_repeats(counts)))}")


def named(run: Lived, judge: Judge, *words: str, since_s: float = 0.0, within_s: float) -> None:
    """Check that a status has all `words` by `within_s` after `since_s`."""
    at_s = run.first(*words, since_s=since_s)
    judge.hold(
        Column.REASON,
        at_s is not None and at_s <= since_s + within_s,
        f"{' and '.join(words)}: {'never' if at_s is None else f'after {at_s - since_s:.0f} s of {within_s:g} s'}",
    )


def informed(run: Lived, judge: Judge) -> None:
    """Check that once the first windows are full, the metrics of every pod can be used in every cycle.

    A new replica may be without metrics for some scrapes, and that must not count as missing.
    """
    seen = [(at_s, status) for at_s, status in run.statuses if at_s >= _READ_S]
    blind = [(at_s, each["message"]) for at_s, status in seen for each in _unavailable(status)]
    found = f"metrics available in {len(seen) - len(blind)} of {len(seen)} statuses"
    judge.hold(Column.REASON, seen and not blind, found + "".join(f"; {at:.0f} s: {why}" for at, why in blind[:1]))


def _unavailable(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    conditions = status.get("conditions", [])
    return [each for each in conditions if each["type"] == "MetricsAvailable" and each["status"] == "False"]


def _without_repeats(counts: Sequence[int]) -> list[int]:
    return [count for index, count in enumerate(counts) if index == 0 or counts[index - 1] != count]


def blind(*words: str) -> Check:
    """Check a run whose metrics cannot be used: the status says so with `words`, and no replica is removed."""

    def check(run: Lived, judge: Judge) -> None:
        named(run, judge, *words, within_s=_READ_S)
        never_down(run, judge)

    return check


def rolled_out(run: Lived, judge: Judge) -> None:
    """Check a roll-out on a full pool: the SLA is met all the while, and it ends once there is room.

    Its pending pod makes the pool fail, so that Sluice may give up replicas of the stage for a while.
    """
    within_caps(run, judge, desired_only=True)
    clock = run.live.clock
    windows = [w for w in run.windows if w.t_s >= _ROLL_S and w.t_s + w.length_s <= _BUSY_SHARE * clock.duration_s]
    met = [window.met is True for window in windows]
    judge.hold(Column.SERVED, met and all(met), f"{sum(met)} of {len(met)} windows met while pods are replaced")
    late = [seen for seen in run.live.observations if seen.t_s > clock.duration_s - _SOON_S]
    asr = (run.pipeline.key, "asr")
    rolled = [
        r for seen in late or run.live.observations[-1:] for (*own, _), r in seen.placements.items() if (*own,) == asr
    ]
    whole = [r for r in rolled if r.existing == r.desired == r.ready]
    last = (whole or rolled)[-1]
    judge.hold(Column.RECOVERY, whole, f"asr {last.ready} ready, {last.existing} exist, {last.desired} desired")


def spends_at_most(share: float) -> Check:
    """Check that the spend in the end is at most this share of the budget."""

    def check(run: Lived, judge: Judge) -> None:
        spend, budget = run.spend()[-1], run.pipeline.budget_per_hour
        judge.hold(Column.SERVED, spend <= share * budget + _EPSILON, f"${spend:.2f} of ${budget:.2f}/h at the end")

    return check


def reported(name: str, field_name: str, least: float, most: float) -> Check:
    """Check that a field of a stage in the status is between these bounds once the windows are full."""

    def check(run: Lived, judge: Judge) -> None:
        stages = [stage for at_s, status in run.statuses if at_s >= _READ_S for stage in status.get("stages", [])]
        values = [float(stage[field_name]) for stage in stages if stage["name"] == name and field_name in stage]
        found = f"{min(values):g}..{max(values):g}" if values else "missing"
        right = values and all(least <= value <= most for value in values)
        judge.hold(Column.REASON, right, f"{field_name} of {name}: {found} of {least:g}..{most:g}")

    return check


def learns(run: Lived, judge: Judge) -> None:
    """Check that the status says that the pipeline learns."""
    named(run, judge, HOLDS[HoldReason.LEARNING], within_s=_READ_S)


def slow_gateway(run: Lived, judge: Judge) -> None:
    """Check a run whose overhead alone exceeds the SLA: the status says so, and it does not empty the budget."""
    named(run, judge, "outside the stages", within_s=_TRIAL_S)
    within_caps(run, judge)
    spends_at_most(_THRIFTY)(run, judge)


def overloaded(run: Lived, judge: Judge) -> None:
    """Check a run whose load exceeds the budget and is not shed: the status names the limit, and it is served again."""
    since_s = _CALM_SHARE * run.live.clock.duration_s
    named(run, judge, "'limitedBy': 'Budget'", since_s=since_s, within_s=_SOON_S)
    within_caps(run, judge)
    served(run, judge)


_SOON_S = 12.0
"""The time for a window of the metrics to pass, and a cycle."""
_READ_S = 20.0
"""The time until a replica must report: four scrapes, here of 4 s, and a cycle."""
_TRIAL_S = 55.0
"""The time until all windows are full after the replicas for twice the load were added, so that the overhead is
measured."""
_THRIFTY = 0.9
_CALM_SHARE, _BUSY_SHARE = 0.25, 0.75
_ROLL_S, _ROOM_S = 20.0, 40.0
_SEVERAL: Mapping[str, Any] = {"otherModels": {"lm": ["preprocess", "postprocess"]}}


# -- the rows


def _of_triton(**metrics: str) -> Mapping[str, Mapping[str, str]]:
    return {"asr": {}, "lm": {"preset": "triton", **metrics}}


def _full_pool() -> Run:
    """Return a run whose replicas fill their pool when a roll-out begins; later they need not be as many."""
    before = Property(
        row="roll-out on a full pool",
        name="rolling",
        checks=(rolled_out,),
        bounds={"asr": 5, "lm": 3},
        instances=2,
        load_falls=True,
    )
    room = {f"SpeechPipeline/{NAMESPACE}/rolling": {"spec": {"stages": replace(before, bounds={}).spec["stages"]}}}
    faults = [
        {"at": f"{_ROLL_S:g}s", "rollOut": f"{NAMESPACE}/rolling/asr"},
        {"at": f"{_ROOM_S:g}s", "set": room},
    ]
    unshed = Property(
        row="an ingress that does not shed",
        name="unshed",
        checks=(overloaded,),
        pipeline={"budget": {"perHour": "1.6"}},
        busy=100.0,
        load_falls=True,
    )
    return Run(rows=(before, unshed), scenario={"faults": faults, "sheds": False}, duration_s=80.0)


RUNS: tuple[Run, ...] = (
    Run(
        rows=(
            Property(
                row="declared: one stage 0.2 x its time",
                name="one-fast",
                by_stage={"profileError": {"asr": "0.2"}},
                checks=(within_caps, served),
            ),
            Property(
                row="declared: all stages 5 x their time",
                name="all-slow",
                by_stage={"profileError": {"asr": 5, "lm": 5}},
                checks=(within_caps, served, spends_at_most(_THRIFTY)),
            ),
            Property(
                row="several tokens per answer",
                name="tokens",
                by_stage={"firstToken": {"lm": "0.2"}},
                stages={"asr": {}, "lm": {"preset": "vllm", "answer": "Whole"}},
                bounds={"lm": 4},
                # Answers take 25 ms on average and hardly wait; their first tokens leave after a fifth of that.
                checks=(within_caps, served, reported("lm", "p95Seconds", 0.02, 0.25)),
            ),
        )
    ),
    Run(
        rows=(
            Property(
                row="several models, one selected",
                name="selected",
                by_stage=_SEVERAL,
                stages=_of_triton(model="lm"),
                checks=(within_caps, served, reported("lm", "rate", 0.5 * CALM, 1.5 * BUSY)),
            ),
            Property(
                row="several models, none selected",
                name="ambiguous",
                by_stage=_SEVERAL,
                stages=_of_triton(),
                load_falls=True,
                checks=(blind("Ambiguous", "preprocess"), within_caps),
            ),
        )
    ),
    Run(
        rows=(Property(row="declared: nothing", name="hidden", checks=(within_caps, served, learns)),),
        scenario={"hideProfiles": True},
    ),
    Run(
        rows=(
            Property(row="time outside the stages", name="mesh", sla="800ms", checks=(within_caps, served)),
            Property(row="time outside the stages above the SLA", name="slow-mesh", checks=(slow_gateway,)),
        ),
        scenario={"overhead": "600ms"},
    ),
    Run(
        rows=(
            Property(
                row="unequal replicas",
                name="unequal",
                busy=75.0,
                checks=(within_caps, partial(served, windows=2 * LAST_WINDOWS)),
            ),
        ),
        scenario={"speedSpread": "0.5"},
        seed=23,  # the first replicas of asr take longer than declared, 1.5 times on average
    ),
    _full_pool(),
    Run(
        rows=(Property(row="scrapes every 30 s", name="half-minute", checks=(within_caps, served, informed)),),
        scenario={"scrapeInterval": "2s"},
    ),
    Run(
        rows=(
            Property(row="scrapes every 60 s", name="minute", window_s=16.0, checks=(within_caps, served, informed)),
            Property(
                row="scrapes every 60 s, windows of 60 s",
                name="too-short",
                window_s=4.0,
                query_s=16.0,
                load_falls=True,
                checks=(
                    blind("WindowTooShort", "metrics.window: 4 s: must be at least two scrape intervals"),
                    within_caps,
                ),
            ),
        ),
        scenario={"scrapeInterval": "4s"},
        duration_s=75.0,
    ),
)


def _row(run: Run, subject: Property) -> Row:
    """Return the row of a pipeline of a run. Only the first row of a run that is judged makes it."""

    def judged(world: World, judge: Judge) -> None:
        if subject.row not in world.kept:
            world.kept.update(lived(world, run))
        own = world.kept.pop(subject.row)  # judged again, the row makes another run
        for check in subject.checks:
            check(own, judge)
        judge.not_applicable(Column.ONE_WRITER, "one operator")
        judge.not_applicable(Column.RESTART, "shown without traffic")

    return Row(name=subject.row, run=judged, shares=run.rows[0].row)


RUN_ROWS: tuple[Row, ...] = tuple(_row(run, subject) for run in RUNS for subject in run.rows)
