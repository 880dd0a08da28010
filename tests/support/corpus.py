"""Good and bad resources that `sluice validate` and the real API server are both asked about."""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.resources.manifests import Document, FieldPath, format_path, load_documents

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "contract"
EXAMPLES = ROOT / "crds" / "examples"
CONTRACT = (HERE / "pools.yaml", HERE / "live-captions.yaml")
GOOD_FILES = (*CONTRACT, HERE / "everything.yaml", *sorted(EXAMPLES.glob("*.yaml")))

REMOVED: Any = object()

PIPELINE, POOL, BUDGET = (document.data for document in load_documents(HERE / "everything.yaml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """One mistake: `changes` made to `base`, and the field that must be blamed.

    `on_server` is where the API server reports it, "" for `field` or what is around it; None: it cannot know.
    """

    name: str
    changes: dict[str, Any]
    field: str
    rule: str
    base: dict[str, Any]
    on_server: str | None

    @property
    def data(self) -> dict[str, Any]:
        return changed(self.base, self.changes)


def parse_path(text: str) -> FieldPath:
    """Return `spec.stages[2].name` as a path; a quoted key may hold dots: `spec.nodeSelector["a.b/c"]`."""
    parts = re.findall(r'\["([^"]+)"\]|\[(\d+)\]|([^.\[\]]+)', text)
    return tuple(int(index) if index else quoted or key for quoted, index, key in parts)


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `base` in which the values at the paths `changes` names are replaced, added or removed."""
    data = copy.deepcopy(base)
    for text, value in changes.items():
        *parents, last = parse_path(text)
        node: Any = data
        for part in parents:
            node = node[part]
        if value is REMOVED:
            del node[last]
        elif isinstance(node, list) and last == len(node):
            node.append(copy.deepcopy(value))
        else:
            node[last] = copy.deepcopy(value)
    return data


def document(data: dict[str, Any], path: str = "corpus.yaml") -> Document:
    return Document(path=Path(path), data=data, lines={(): 1})


def good() -> list[tuple[str, dict[str, Any]]]:
    """Return a name and the data of every good resource of Sluice."""
    documents = [(path.stem, document.data) for path in GOOD_FILES for document in load_documents(path)]
    files = [(stem, data) for stem, data in documents if str(data["apiVersion"]).startswith("sluice.dev/")]
    named = [(f"{stem}-{data['metadata']['name']}", data) for stem, data in files]
    variants = [(name, changed(PIPELINE, changes)) for name, changes in GOOD_CHANGES.items()]
    variants += [(name, changed(POOL, changes)) for name, changes in GOOD_POOL_CHANGES.items()]
    return named + variants + [(name, changed(BUDGET, changes)) for name, changes in GOOD_BUDGET_CHANGES.items()]


def _bad(  # one line per mistake below
    name: str,
    changes: dict[str, Any],
    field: str,
    rule: str,
    *,
    base: dict[str, Any] = PIPELINE,
    on_server: str | None = "",
) -> Bad:
    return Bad(name=name, changes=changes, field=field, rule=rule, base=base, on_server=on_server)


_HOURS = "spec.demand.atLeast[0]"
_EVENT = "spec.demand.atLeast[1]"
_EXPECTED = "spec.demand.expected[0]"
_SELECTS = "spec.namespaceSelector.matchExpressions"

GOOD_CHANGES: dict[str, dict[str, Any]] = {
    "nothing optional in the spec": {"spec.mode": REMOVED, "spec.priority": REMOVED, "spec.scaling": REMOVED},
    "absent by null": {
        "spec.mode": None,
        "spec.scaling.scaleUp": None,
        "spec.stages[0].placements[0].concurrency": None,
    },
    "requests without a chunk": {"spec.demand": {"unit": "Requests", "query": "q"}},
    "no after: the stage before": {"spec.stages[2].after": REMOVED, "spec.stages[1].after": REMOVED},
    "the largest fan-out": {"spec.stages[0].passRatio": "100.000"},
    "a fractional fan-out": {"spec.stages[0].passRatio": "12.5"},
    "two entries that join": {"spec.stages[1].after": [], "spec.stages[0].passRatio": "1"},
    "a filter before the fork and behind the join": {"spec.stages[0].passRatio": "0.1"},
    "the longest duration": {"spec.scaling.scaleDown.drain": "23h59m60s"},
    "the shortest duration": {"spec.sla.latency": "0.001us"},
    "numbers at their limits": {"spec.sla.percentile": 50, "spec.priority": 1_000_000_000},
    "ratios at their limits": {"spec.scaling.tolerance": "0.0", "spec.stages[0].passRatio": "1.000"},
    "wer at the limit": {"spec.sla.maxWer": "0.081"},
    "a placement that is switched off": {"spec.stages[1].placements[0].replicas": {"max": 0}},
    "one name, two kinds of target": {
        "spec.stages[2].placements[0].target": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "vad"}
    },
    "a core target": {"spec.stages[2].placements[0].target.apiVersion": "v1"},
    "hours of every day in UTC": {f"{_HOURS}.days": REMOVED, f"{_HOURS}.timeZone": REMOVED},
    "hours past midnight": {f"{_HOURS}.from": "22:00", f"{_HOURS}.until": "06:00"},
    "a whole day": {f"{_HOURS}.from": "00:00", f"{_HOURS}.until": "24:00"},
    "no known demand": {"spec.demand.atLeast": []},
    "an event on a leap day": {f"{_EVENT}.start": "2028-02-29T00:00:00Z", f"{_EVENT}.end": "2028-03-01T00:00:00Z"},
    "a schedule in UTC": {f"{_EXPECTED}.timeZone": REMOVED, f"{_EXPECTED}.schedule": "*/5 8-17/2 1,15 JAN-MAR 0,7"},
    "no expected events": {"spec.demand.expected": []},
    "no budget to spend": {"spec.budget.perHour": "0"},
    "a group of instances": {
        "spec.stages[0].placements[0].target": {
            "apiVersion": "sluice.dev/v1alpha1",
            "kind": "AutoScalingGroup",
            "name": "vad",
        }
    },
    "a budget for shares": {"spec.budget.basis": "Replicas"},
    "the default basis": {"spec.budget.basis": REMOVED},
    "no numbers of a placement": {
        "spec.stages[0].placements[0].serviceTime": REMOVED,
        "spec.stages[0].placements[0].startup": REMOVED,
        "spec.stages[3].placements[0].memory": REMOVED,
    },
    "a rule on sessions without memory": {"spec.stages[0].rules[0].metric": "sessions"},
    "a model of Triton": {"spec.stages[1].metrics": {"preset": "triton", "model": "asr ensemble/v1.2"}},
    "a preset of the user": {"spec.stages[1].metrics": {"preset": "whisper-2", "model": "base", "answer": "First"}},
    "labels of series": {
        "spec.stages[1].metrics": {
            "labels": {"namespace": "ns", "pod": "exported_pod", "match": [{"label": "cluster", "value": "eu 1"}]}
        }
    },
    "the first token of vLLM": {"spec.stages[1].metrics": {"preset": "vllm", "model": "a/b-1.7B", "answer": "First"}},
    "the longest name of a model": {"spec.stages[1].metrics": {"preset": "triton", "model": "ö" * 253}},
    "a status from the server": {"status": {"observedGeneration": 3, "memory": {"version": 1, "anything": [1.5]}}},
}
GOOD_POOL_CHANGES: dict[str, dict[str, Any]] = {
    "as many as there are nodes": {"spec.capacity": {"readyNodes": True}, "spec.unavailable": REMOVED},
    "as many as Karpenter may make": {"spec.capacity": {"nodePool": "inf2"}},
    "as many as are stated": {"spec.capacity": {"instances": 3}},
    "free hardware": {"spec.price.perHour": "0"},
    "one price for all types": {"spec.price.byInstanceType": REMOVED},
    "the longest type": {f'spec.price.byInstanceType["{"x" * 63}"]': "1"},
    "a price of AWS": {"spec.price": {"aws": {"instanceType": "inf2.xlarge", "region": "us-east-1"}}},
    "spot prices of some zones": {
        "spec.price": {
            "perHour": "0.9",
            "aws": {
                "instanceTypes": ["g5.xlarge", "g5.2xlarge"],
                "region": "us-east-1",
                "purchase": "Spot",
                "zones": ["us-east-1a"],
                "refresh": "5m",
            },
        }
    },
    "a savings plan": {
        "spec.price": {"aws": {"instanceType": "c7i.xlarge", "region": "eu-west-1", "savings": "0.28"}, "perHour": "1"}
    },
    "as many as a quota allows": {
        "spec.capacity": {"quota": {"family": "Inf", "region": "us-east-1", "vcpusPerInstance": 4}}
    },
    "a quota by its code": {
        "spec.capacity": {
            "quota": {"code": "L-6B0D517C", "purchase": "Spot", "region": "us-east-1", "vcpusPerInstance": 8}
        }
    },
    "vCPUs by the type": {
        "spec.price": {"aws": {"instanceType": "inf2.xlarge", "region": "us-east-1"}},
        "spec.capacity": {"quota": {"family": "Inf", "region": "us-east-1"}},
    },
    "as many as an Auto Scaling group may have": {"spec.capacity": {"autoScalingGroup": "vad nodes/1"}},
    "longest label": {'spec.nodeSelector["example.com/a_b.c-d"]': "x" * 63},
}

GOOD_BUDGET_CHANGES: dict[str, dict[str, Any]] = {
    "all namespaces": {"spec.namespaceSelector": {}, "spec.periods": REMOVED},
    "nothing to spend together": {"spec.perHour": "0"},
    "any value of a label": {f"{_SELECTS}[0]": {"key": "team", "operator": "DoesNotExist"}},
}

_G5 = {"instanceType": "g5.xlarge", "region": "us-east-1"}
_V = "spec.stages[0]"
_G = "spec.stages[1].placements[2].variants[0].memory.kvCache"
_T = "spec.stages[1].placements[2]"
_C = "spec.stages[2]"
_S = "spec.stages[4].placements[0]"
_TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "another"}
_E = "spec.stages[1].placements[0]"
_L = "spec.stages[3].placements[0]"
_KV = f"{_L}.memory.kvCache"
_DURATION = "must be a duration"


def _served(preset: str, **fields: str) -> dict[str, Any]:
    return {f"{_V}.metrics": {"preset": preset, **fields}}


BAD: tuple[Bad, ...] = (
    # Unknown fields
    _bad("unknown field", {"spec.colour": "red"}, "spec.colour", "unknown field; known fields: "),
    _bad(
        "misspelt optional field",
        {f"{_V}.passRatio": REMOVED, f"{_V}.pasRatio": "0.4"},
        f"{_V}.pasRatio",
        "did you mean passRatio?",
    ),
    _bad(
        "misspelt required field",
        {"spec.sla.latency": REMOVED, "spec.sla.latencey": "1s"},
        "spec.sla.latencey",
        "did you mean latency?",
    ),
    _bad(
        "misspelt part",
        {f"{_E}.replicas": REMOVED, f"{_E}.replica": {"max": 3}},
        f"{_E}.replica",
        "did you mean replicas?",
    ),
    _bad("wrong case", {f"{_E}.perinstance": 2}, f"{_E}.perinstance", "did you mean perInstance?"),
    _bad("unknown field of metadata", {"metadata.lables": {}}, "metadata.lables", "unknown field"),
    _bad("unknown field at the root", {"specs": {}}, "specs", "unknown field"),
    # Required
    _bad("no spec", {"spec": REMOVED}, "spec", "required"),
    _bad("no demand", {"spec.demand": REMOVED}, "spec.demand", "required"),
    _bad("no unit", {"spec.demand.unit": REMOVED}, "spec.demand.unit", "required"),
    _bad("no demand query", {"spec.demand.query": REMOVED}, "spec.demand.query", "required"),
    _bad("no sla", {"spec.sla": REMOVED}, "spec.sla", "required"),
    _bad("no latency", {"spec.sla.latency": REMOVED}, "spec.sla.latency", "required"),
    _bad("required by null", {"spec.sla.latency": None}, "spec.sla.latency", "required"),
    _bad("no budget", {"spec.budget": REMOVED}, "spec.budget", "required"),
    _bad("no stages", {"spec.stages": REMOVED}, "spec.stages", "required"),
    _bad("no stage name", {f"{_V}.name": REMOVED}, f"{_V}.name", "required"),
    _bad("no placements", {f"{_V}.placements": REMOVED}, f"{_V}.placements", "required"),
    _bad("no pool", {f"{_E}.pool": REMOVED}, f"{_E}.pool", "required"),
    _bad("no target", {f"{_E}.target": REMOVED}, _E, "needs exactly one of target and variants"),
    _bad("no target kind", {f"{_E}.target.kind": REMOVED}, f"{_E}.target.kind", "required"),
    _bad("no replicas", {f"{_E}.replicas": REMOVED}, f"{_E}.replicas", "required"),
    _bad("no replicas.max", {f"{_E}.replicas": {"min": 1}}, f"{_E}.replicas.max", "required"),
    _bad("no rule name", {f"{_V}.rules[0].name": REMOVED}, f"{_V}.rules[0].name", "required"),
    _bad("no addReplicas", {f"{_V}.rules[0].addReplicas": REMOVED}, f"{_V}.rules[0].addReplicas", "required"),
    _bad("no kv shape", {f"{_KV}.layers": REMOVED}, f"{_KV}.layers", "required"),
    _bad("no name of known demand", {f"{_HOURS}.name": REMOVED}, f"{_HOURS}.name", "required"),
    _bad("no value of known demand", {f"{_EVENT}.demand": REMOVED}, f"{_EVENT}.demand", "required"),
    # Known demand
    _bad("known demand as a number", {f"{_HOURS}.demand": 400}, f"{_HOURS}.demand", "put it in quotes"),
    _bad("negative known demand", {f"{_HOURS}.demand": "-1"}, f"{_HOURS}.demand", "at least 0"),
    _bad("hours without an end", {f"{_HOURS}.until": REMOVED}, _HOURS, "from and until must be given together"),
    _bad("hours without a begin", {f"{_HOURS}.from": REMOVED}, _HOURS, "from and until must be given together"),
    _bad("an event without an end", {f"{_EVENT}.end": REMOVED}, _EVENT, "start and end must be given together"),
    _bad(
        "neither hours nor event",
        {_HOURS: {"name": "a", "demand": "1", "days": ["Monday"]}},
        _HOURS,
        "needs either from and until, or start and end",
    ),
    _bad(
        "hours and event",
        {f"{_EVENT}.from": "08:00", f"{_EVENT}.until": "09:00"},
        _EVENT,
        "needs either from and until, or start and end",
    ),
    _bad("an event on a weekday", {f"{_EVENT}.days": ["Monday"]}, _EVENT, "days and timeZone are allowed only with"),
    _bad("an event in a zone", {f"{_EVENT}.timeZone": "UTC"}, _EVENT, "days and timeZone are allowed only with"),
    _bad("hours of no length", {f"{_HOURS}.until": "08:00"}, f"{_HOURS}.until", "must not be equal to from"),
    _bad("an event of no length", {f"{_EVENT}.end": "2026-12-24T19:00:00+01:00"}, f"{_EVENT}.end", "after start"),
    _bad("a time of day without a zero", {f"{_HOURS}.from": "8:00"}, f"{_HOURS}.from", "must be a time of day"),
    _bad("hours that begin at 24:00", {f"{_HOURS}.from": "24:00"}, f"{_HOURS}.from", "must be a time of day"),
    _bad(
        "a time of day as a number", {f"{_HOURS}.until": 18}, f"{_HOURS}.until", 'a time of day in quotes from "00:00"'
    ),
    _bad("a weekday in short", {f"{_HOURS}.days[0]": "Mon"}, f"{_HOURS}.days[0]", "must be Monday"),
    _bad("no weekday", {f"{_HOURS}.days": []}, f"{_HOURS}.days", "must have at least 1 entries"),
    _bad("one weekday twice", {f"{_HOURS}.days[1]": "Monday"}, f"{_HOURS}.days[1]", "must be unique"),
    _bad("two known demands of one name", {f"{_EVENT}.name": "business-hours"}, f"{_EVENT}.name", "must be unique"),
    _bad(
        "unknown time zone",
        {f"{_HOURS}.timeZone": "Europe/Berln"},
        f"{_HOURS}.timeZone",
        "did you mean Europe/Berlin?",
        on_server=None,
    ),
    _bad("no name of a zone", {f"{_HOURS}.timeZone": "UTC+1:00"}, f"{_HOURS}.timeZone", "must be an IANA time zone"),
    _bad("an event without an offset", {f"{_EVENT}.start": "2026-12-24T18:00:00"}, f"{_EVENT}.start", "RFC 3339"),
    _bad("an event on no day", {f"{_EVENT}.start": "2026-02-31T18:00:00Z"}, f"{_EVENT}.start", "day of the calendar"),
    _bad(
        "too many known demands",
        {"spec.demand.atLeast": [{**PIPELINE["spec"]["demand"]["atLeast"][1], "name": f"n{i}"} for i in range(17)]},
        "spec.demand.atLeast",
        "must have at most 16 entries",
    ),
    # Expected demand
    _bad("no schedule", {f"{_EXPECTED}.schedule": REMOVED}, f"{_EXPECTED}.schedule", "required"),
    _bad("no length of events", {f"{_EXPECTED}.for": REMOVED}, f"{_EXPECTED}.for", "required"),
    _bad("no expected demand", {f"{_EXPECTED}.atLeast": REMOVED}, f"{_EXPECTED}.atLeast", "required"),
    _bad("events of no length", {f"{_EXPECTED}.for": "0s"}, f"{_EXPECTED}.for", "must be longer than 0s"),
    _bad("an hour of no clock", {f"{_EXPECTED}.schedule": "0 24 * * *"}, f"{_EXPECTED}.schedule", "hour 24: must be"),
    _bad(
        "a schedule of six fields", {f"{_EXPECTED}.schedule": "0 0 1 * * *"}, f"{_EXPECTED}.schedule", "it has 6 of 5"
    ),
    _bad(
        "a range that ends before it begins",
        {f"{_EXPECTED}.schedule": "0 18-8 * * *"},
        f"{_EXPECTED}.schedule",
        "hour 18-8: a range must not end before it begins",
        on_server=None,
    ),
    _bad(
        "a schedule without a day",
        {f"{_EXPECTED}.schedule": "0 0 30 2 *"},
        f"{_EXPECTED}.schedule",
        "never occurs",
        on_server=None,
    ),
    _bad(
        "unknown time zone of a schedule",
        {f"{_EXPECTED}.timeZone": "Europe/Berln"},
        f"{_EXPECTED}.timeZone",
        "did you mean Europe/Berlin?",
        on_server=None,
    ),
    # Budgets
    _bad("no selector", {"spec.namespaceSelector": REMOVED}, "spec.namespaceSelector", "required", base=BUDGET),
    _bad("no amount", {"spec.perHour": REMOVED}, "spec.perHour", "required", base=BUDGET),
    _bad("an amount as a number", {"spec.perHour": 60}, "spec.perHour", "put it in quotes", base=BUDGET),
    _bad("a negative amount", {"spec.perHour": "-1"}, "spec.perHour", "at least 0", base=BUDGET),
    _bad(
        "one of no values",
        {f"{_SELECTS}[0].values": REMOVED},
        f"{_SELECTS}[0].values",
        "needed with In and NotIn",
        base=BUDGET,
    ),
    _bad(
        "values of what exists",
        {f"{_SELECTS}[1].values": ["a"]},
        f"{_SELECTS}[1].values",
        "not allowed with Exists",
        base=BUDGET,
    ),
    _bad(
        "a comparison of labels", {f"{_SELECTS}[0].operator": "Gt"}, f"{_SELECTS}[0].operator", "must be", base=BUDGET
    ),
    _bad(
        "a period of five hundred minutes an hour",
        {"spec.periods[0].schedule": "500 * * * *"},
        "spec.periods[0].schedule",
        "minute 500: must be",
        base=BUDGET,
    ),
    _bad(
        "no amount of a period",
        {"spec.periods[0].perHour": REMOVED},
        "spec.periods[0].perHour",
        "required",
        base=BUDGET,
    ),
    _bad(
        "a selector that is no label key",
        {'spec.namespaceSelector.matchLabels["a b"]': "c"},
        "spec.namespaceSelector.matchLabels[a b]",
        "must be a label key",
        base=BUDGET,
        on_server="spec.namespaceSelector.matchLabels",
    ),
    # Cold starts
    _bad(
        "a cold start of what is never cold",
        {"spec.scaling.idleAfter": REMOVED, "spec.scaling.coldStart": "Wait"},
        "spec.scaling.coldStart",
        "allowed only with idleAfter",
    ),
    _bad(
        "an unknown cold start", {"spec.scaling.coldStart": "Queue"}, "spec.scaling.coldStart", "must be Wait or Refuse"
    ),
    _bad("an unknown admission", {"spec.demand.admission": "Some"}, "spec.demand.admission", "must be Shed"),
    # Types
    _bad("money as a number", {"spec.budget.perHour": 20}, "spec.budget.perHour", "put it in quotes"),
    _bad("ratio as a float", {f"{_V}.passRatio": 0.45}, f"{_V}.passRatio", "put it in quotes"),
    _bad("duration as a number", {"spec.sla.latency": 250}, "spec.sla.latency", "must be a duration such as 160ms"),
    _bad("count as a string", {f"{_E}.replicas.max": "3"}, f"{_E}.replicas.max", "must be an integer"),
    _bad("count as a float", {f"{_E}.perInstance": 1.5}, f"{_E}.perInstance", "must be an integer"),
    _bad("count as a boolean", {f"{_E}.concurrency": True}, f"{_E}.concurrency", "must be an integer"),
    _bad("name as a boolean", {f"{_V}.name": True}, f"{_V}.name", "must be a string"),
    _bad("part as a string", {"spec.sla": "250ms"}, "spec.sla", "must be a mapping"),
    _bad("part as a list", {f"{_E}.replicas": [1, 2]}, f"{_E}.replicas", "must be a mapping"),
    _bad("list as a string", {"spec.stages[1].after": "vad"}, "spec.stages[1].after", "must be a list"),
    _bad("list as a part", {"spec.stages": {"vad": {}}}, "spec.stages", "must be a list", on_server="spec.stages.vad"),
    _bad("stage as a string", {"spec.stages[0]": "vad"}, "spec.stages[0]", "must be a mapping"),
    _bad("null in a list", {f"{_V}.placements[0]": None}, f"{_V}.placements[0]", "must be a mapping"),
    _bad(
        "label as a number",
        {"metadata.labels.team": 3},
        "metadata.labels.team",
        "put it in quotes",
        on_server="ObjectMeta.labels",
    ),
    # Words
    _bad("mode", {"spec.mode": "auto"}, "spec.mode", "must be Auto, Recommend or Paused"),
    _bad("unit", {"spec.demand.unit": "Chunks"}, "spec.demand.unit", "must be Streams, Requests or Items"),
    _bad("routing", {f"{_V}.routing": "Weighted"}, f"{_V}.routing", "must be Pull"),
    _bad("preset", {f"{_V}.metrics.preset": "Triton"}, f"{_V}.metrics.preset", "must be a DNS label"),
    _bad(
        "label of series",
        {f"{_V}.metrics": {"labels": {"pod": "exported-pod"}}},
        f"{_V}.metrics.labels.pod",
        "must be the name of a label in Prometheus",
    ),
    *(
        _bad(
            f"label of series {label}",
            {f"{_V}.metrics": {"labels": {"pod": label}}},
            f"{_V}.metrics.labels.pod",
            "must not be le, quantile, instance, job or begin with __",
        )
        for label in ("le", "__name__")
    ),
    _bad(
        "one label for pods and namespaces",
        {f"{_V}.metrics": {"labels": {"namespace": "pod"}}},
        f"{_V}.metrics.labels.pod",
        "must not be the label that has the namespace",
    ),
    _bad(
        "a regular expression for a label of series",
        {f"{_V}.metrics": {"labels": {"match": [{"label": "cluster", "value": "~eu.*"}]}}},
        f"{_V}.metrics.labels.match[0].value",
        "must not begin with ~",
    ),
    _bad(
        "quantity",
        {f"{_V}.metrics.overrides[0].quantity": "p95"},
        f"{_V}.metrics.overrides[0].quantity",
        "must be arrivalRate",
    ),
    _bad("model with a quote", _served("triton", model='a"b'), f"{_V}.metrics.model", "must be the name of a model"),
    _bad("model with a backslash", _served("triton", model="a\\b"), f"{_V}.metrics.model", "name of a model"),
    _bad("model with a line break", _served("triton", model="a\nb"), f"{_V}.metrics.model", "name of a model"),
    _bad("model with a long name", _served("triton", model="m" * 254), f"{_V}.metrics.model", "longer than 253"),
    _bad(
        "model of generic",
        _served("generic", model="asr"),
        f"{_V}.metrics.model",
        "not allowed with presets generic and ray-serve",
    ),
    _bad("answer", _served("vllm", answer="Last"), f"{_V}.metrics.answer", "must be Whole or First"),
    _bad("answer of generic", _served("generic", answer="First"), f"{_V}.metrics.answer", "needs preset vllm"),
    _bad("answer of Triton", _served("triton", answer="Whole"), f"{_V}.metrics.answer", "needs preset vllm"),
    _bad("rule metric", {f"{_V}.rules[0].metric": "cpu"}, f"{_V}.rules[0].metric", "must be p95"),
    _bad("rule per", {f"{_V}.rules[0].per": "Node"}, f"{_V}.rules[0].per", "must be Zone"),
    _bad("confidence", {f"{_E}.serviceTime.confidence": "low"}, f"{_E}.serviceTime.confidence", "must be Low"),
    # Patterns
    _bad("duration without a unit", {"spec.sla.latency": "250"}, "spec.sla.latency", _DURATION),
    _bad("duration in days", {"spec.scaling.scaleDown.drain": "1d"}, "spec.scaling.scaleDown.drain", _DURATION),
    _bad("duration with a sign", {f"{_E}.batching.wait": "-10ms"}, f"{_E}.batching.wait", _DURATION),
    _bad("duration with a space", {f"{_V}.metrics.window": "1 m"}, f"{_V}.metrics.window", _DURATION),
    _bad("empty duration", {f"{_E}.startup": ""}, f"{_E}.startup", _DURATION),
    _bad("money with a sign", {"spec.budget.perHour": "-1"}, "spec.budget.perHour", "must be a decimal number"),
    _bad("money with a currency", {"spec.budget.perHour": "$20"}, "spec.budget.perHour", "must be a decimal number"),
    _bad("money with an exponent", {"spec.budget.perHour": "1e3"}, "spec.budget.perHour", "must be a decimal number"),
    _bad(
        "money with a leading zero", {"spec.budget.perHour": "020"}, "spec.budget.perHour", "must be a decimal number"
    ),
    _bad("cv with a comma", {f"{_E}.serviceTime.cv": "0,3"}, f"{_E}.serviceTime.cv", "must be a decimal number"),
    _bad("tolerance in percent", {"spec.scaling.tolerance": "10"}, "spec.scaling.tolerance", "from 0 to 1"),
    _bad("ratio above 1", {"spec.scaling.tolerance": "1.01"}, "spec.scaling.tolerance", "from 0 to 1"),
    _bad("fan-out above 100", {f"{_V}.passRatio": "100.01"}, f"{_V}.passRatio", "from 0 to 100"),
    _bad("fan-out of three digits", {f"{_V}.passRatio": "101"}, f"{_V}.passRatio", "from 0 to 100"),
    _bad(
        "no tokens and no growth",
        {f"{_KV}.tokensPerSession": REMOVED},
        _KV,
        "exactly one of tokensPerSession and growth",
    ),
    _bad("tokens and growth", {f"{_G}.tokensPerSession": 100}, _G, "exactly one of tokensPerSession and growth"),
    _bad(
        "growth to less than the start", {f"{_G}.growth.most": 100}, f"{_G}.growth.most", "must be at least start (200)"
    ),
    _bad("sessions of no length", {f"{_G}.growth.session.mean": "0s"}, f"{_G}.growth.session.mean", "longer than 0s"),
    _bad(
        "growth beyond the memory",
        {f"{_G}.growth.tokensPerMinute": 9_000_000, f"{_G}.growth.most": REMOVED},
        f"{_G}.deviceMemory",
        "must hold at least one session",
        on_server=None,
    ),
    _bad(
        "no bandwidth", {"spec.stages[3].transfer.bandwidth": REMOVED}, "spec.stages[3].transfer.bandwidth", "required"
    ),
    _bad(
        "nothing carried",
        {"spec.stages[3].transfer.bytesPerItem": "0"},
        "spec.stages[3].transfer.bytesPerItem",
        "above 0",
    ),
    _bad("a cascade to elsewhere", {f"{_C}.cascade.to": "tpu"}, f"{_C}.cascade.to", "one of at least two placements"),
    _bad("a cascade of one placement", {f"{_C}.placements[0]": REMOVED}, f"{_C}.cascade.to", "at least two placements"),
    _bad("a share in percent", {f"{_C}.cascade.share": "20"}, f"{_C}.cascade.share", "from 0 to 1"),
    _bad(
        "a cascade of sessions",
        {f"{_C}.placements[1].memory": {"sessions": 4}},
        f"{_C}.cascade",
        "not allowed where sessions stay with a replica",
    ),
    _bad(
        "a cascade of unknown speed",
        {f"{_C}.placements[0].serviceTime": REMOVED},
        f"{_C}.cascade",
        "needs the serviceTime of all placements",
    ),
    _bad("a sticky cascade", {f"{_C}.routing": "Sticky"}, f"{_C}.cascade", "not allowed where sessions stay"),
    _bad(
        "a pod on two nodes",
        {f"{_L}.instancesPerReplica": 2},
        f"{_L}.instancesPerReplica",
        "only where the target is a LeaderWorkerSet",
    ),
    _bad("groups that share", {f"{_S}.perInstance": 2}, f"{_S}.perInstance", "with instancesPerReplica above 1"),
    _bad(
        "swap without a cache",
        {f"{_S}.memory.kvCache": REMOVED, f"{_S}.memory.sessions": 40},
        f"{_S}.memory.swap",
        "needs kvCache",
    ),
    _bad("swap without a rate", {f"{_S}.memory.swap.bandwidth": REMOVED}, f"{_S}.memory.swap.bandwidth", "required"),
    _bad(
        "swap and transfer",
        {"spec.stages[4].transfer": {"bytesPerItem": "1Mi", "bandwidth": "1G"}},
        "spec.stages[4].transfer",
        "not allowed together with memory.swap",
    ),
    _bad(
        "swap on one of two devices",
        {
            "spec.stages[4].placements[1]": {
                "pool": "inferentia",
                "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "summary-inferentia"},
                "replicas": {"max": 4},
                "memory": {"sessions": 10},
            }
        },
        "spec.stages[4].placements",
        "in all placements",
        on_server=None,
    ),
    _bad(
        "a prefix of no prefill",
        {f"{_S}.serviceTime.prefill": REMOVED},
        f"{_S}.serviceTime.prefixHitRate",
        "needs prefill",
    ),
    _bad(
        "a prefix longer than the session",
        {f"{_S}.memory.kvCache.sharedTokens": 4096},
        f"{_S}.memory.kvCache.sharedTokens",
        "must be less than tokensPerSession",
    ),
    _bad("target and variants", {f"{_T}.target": _TARGET}, _T, "needs exactly one of target and variants"),
    _bad(
        "a minimum of all variants",
        {f"{_T}.replicas": {"min": 1, "max": 6}},
        f"{_T}.replicas",
        "min must be 0 with variants",
    ),
    _bad("a variant without target", {f"{_T}.variants[0].target": REMOVED}, f"{_T}.variants[0].target", "required"),
    _bad("one variant twice", {f"{_T}.variants[1].name": "bf16"}, f"{_T}.variants[1].name", "must be unique"),
    _bad(
        "a variant named as a list", {f"{_T}.variants[1].name": "a:b"}, f"{_T}.variants[1].name", "must be a DNS label"
    ),
    _bad(
        "one workload for two variants",
        {f"{_T}.variants[1].target.name": "encoder-bf16"},
        f"{_T}.variants[1].target",
        "must be the target of one placement only; spec.stages[1].placements[2].variants[0]",
        on_server=None,
    ),
    _bad("a slice of audio in percent", {f"{_T}.werBySlice": {"noisy": "19"}}, f"{_T}.werBySlice.noisy", "from 0 to 1"),
    _bad("wer in percent", {f"{_E}.wer": "8.1"}, f"{_E}.wer", "from 0 to 1"),
    _bad("threshold", {f"{_V}.rules[0].above": "80%"}, f"{_V}.rules[0].above", "must be a decimal number"),
    _bad("memory", {f"{_KV}.deviceMemory": "24 GB"}, f"{_KV}.deviceMemory", "must be a quantity"),
    _bad("stage name", {"spec.stages[3].name": "language_model"}, "spec.stages[3].name", "must be a DNS label"),
    _bad("target name", {f"{_E}.target.name": "Encoder"}, f"{_E}.target.name", "must be a DNS name"),
    _bad("target kind", {f"{_E}.target.kind": "deployment"}, f"{_E}.target.kind", "must be a Kubernetes kind"),
    _bad("target version", {f"{_E}.target.apiVersion": "apps"}, f"{_E}.target.apiVersion", "must be an API version"),
    _bad("pipeline name", {"metadata.name": "live.captions"}, "metadata.name", "must be a DNS label"),
    _bad("pipeline name too long", {"metadata.name": "x" * 64}, "metadata.name", "not be longer than 63"),
    # Ranges
    _bad("no time at all", {"spec.sla.latency": "0s"}, "spec.sla.latency", "must be longer than 0s"),
    _bad("less than a nanosecond", {"spec.sla.latency": "0.0001us"}, "spec.sla.latency", "must be longer than 0s"),
    _bad("more than a day", {f"{_E}.startup": "25h"}, f"{_E}.startup", "must be at most 24h"),
    _bad("more than Go can count", {f"{_E}.startup": "9999999999h"}, f"{_E}.startup", "must be at most 24h"),
    _bad("a filter that passes nothing", {f"{_V}.passRatio": "0.0"}, f"{_V}.passRatio", "must be above 0"),
    _bad("percentile too high", {"spec.sla.percentile": 100}, "spec.sla.percentile", "must be at most 99"),
    _bad("percentile too low", {"spec.sla.percentile": 5}, "spec.sla.percentile", "must be at least 50"),
    _bad("negative priority", {"spec.priority": -1}, "spec.priority", "must be at least 0"),
    _bad(
        "negative replicas",
        {"spec.stages[2].placements[0].replicas.min": -1},
        "spec.stages[2].placements[0].replicas.min",
        "must be at least 0",
    ),
    _bad("no replica per instance", {f"{_E}.perInstance": 0}, f"{_E}.perInstance", "must be at least 1"),
    _bad("no concurrency", {f"{_E}.concurrency": 0}, f"{_E}.concurrency", "must be at least 1"),
    _bad("no queue", {f"{_V}.queueLimit": 0}, f"{_V}.queueLimit", "must be at least 1"),
    _bad("empty batch", {f"{_E}.batching.max": 0}, f"{_E}.batching.max", "must be at least 1"),
    _bad("no sessions", {f"{_E}.memory.sessions": 0}, f"{_E}.memory.sessions", "must be at least 1"),
    _bad(
        "rule that adds nothing", {f"{_V}.rules[0].addReplicas": 0}, f"{_V}.rules[0].addReplicas", "must be at least 1"
    ),
    _bad("no weights", {f"{_KV}.weights": "0Gi"}, f"{_KV}.weights", "must be above 0"),
    _bad("empty query", {"spec.demand.query": ""}, "spec.demand.query", "must not be shorter"),
    _bad("endless query", {"spec.sla.query": "x" * 4097}, "spec.sla.query", "must not be longer"),
    _bad("no stage", {"spec.stages": []}, "spec.stages", "at least 1"),
    _bad("no placement", {f"{_V}.placements": []}, f"{_V}.placements", "at least 1"),
    _bad("no batch size", {f"{_E}.batching": {"sizes": []}}, f"{_E}.batching.sizes", "at least 1"),
    _bad(
        "too many stages",
        {
            "spec.stages": [
                changed(
                    PIPELINE["spec"]["stages"][2], {"name": f"s{i}", "after": [], "placements[0].target.name": f"s{i}"}
                )
                for i in range(21)
            ]
        },
        "spec.stages",
        "at most 20",
    ),
    _bad(
        "too many placements",
        {
            "spec.stages[2].placements": [
                changed(PIPELINE["spec"]["stages"][2]["placements"][0], {"pool": f"p{i}", "target.name": f"t{i}"})
                for i in range(9)
            ]
        },
        "spec.stages[2].placements",
        "at most 8",
    ),
    # Unique
    _bad(
        "two stages with one name",
        {"spec.stages[2].name": "encoder", "spec.stages[3].after": ["encoder"]},
        "spec.stages[2].name",
        "must be unique",
    ),
    _bad(
        "two placements on one pool",
        {"spec.stages[1].placements[1].pool": "inferentia"},
        "spec.stages[1].placements[1].pool",
        "must be unique",
    ),
    _bad("two rules with one name", {f"{_V}.rules[1].name": "pressure"}, f"{_V}.rules[1].name", "must be unique"),
    _bad(
        "two overrides of one quantity",
        {f"{_V}.metrics.overrides[1].quantity": "latencyP95"},
        f"{_V}.metrics.overrides[1].quantity",
        "must be unique",
    ),
    _bad(
        "one stage twice in after",
        {"spec.stages[3].after": ["encoder", "encoder"]},
        "spec.stages[3].after[1]",
        "must be unique",
    ),
    _bad("one batch size twice", {f"{_E}.batching": {"sizes": [1, 4, 4]}}, f"{_E}.batching.sizes[2]", "must be unique"),
    # Between fields
    _bad(
        "chunk with requests", {"spec.demand.unit": "Requests"}, "spec.demand.chunk", "not allowed with unit Requests"
    ),
    _bad("streams without a chunk", {"spec.demand.chunk": REMOVED}, "spec.demand.chunk", "required with unit Streams"),
    _bad("min above max", {f"{_E}.replicas.min": 25}, f"{_E}.replicas.max", "must be at least min (25)"),
    _bad("no time per batch", {f"{_E}.serviceTime": {"cv": "0.1"}}, f"{_E}.serviceTime", "fixed, perItem or floor"),
    _bad(
        "points beside a line",
        {f"{_E}.serviceTime": {"perItem": "2ms", "points": {"1": "12ms"}}},
        f"{_E}.serviceTime.points",
        "not allowed with fixed, perItem or floor",
    ),
    _bad(
        "a point that is no batch size",
        {f"{_E}.serviceTime": {"points": {"1": "12ms", "many": "30ms"}}},
        f"{_E}.serviceTime.points",
        "the names must be batch sizes in quotes",
    ),
    _bad(
        "a larger batch that takes less time",
        {f"{_E}.serviceTime": {"points": {"4": "14ms", "16": "9ms"}}},
        f"{_E}.serviceTime.points",
        "a larger batch must not take less time",
        on_server=None,
    ),
    _bad(
        "a batch that waits although requests join at once",
        {f"{_L}.batching": {"kind": "Continuous", "max": 16, "wait": "1ms"}},
        f"{_L}.batching.wait",
        "not allowed with kind Continuous",
    ),
    _bad(
        "placements that batch in two ways",
        {f"{_E}.batching": {"kind": "Continuous", "max": 8}},
        "spec.stages[1].placements",
        "all placements must have the same batching.kind",
    ),
    _bad(
        "a prefill where batches end together",
        {f"{_E}.serviceTime.prefill": "5ms"},
        "spec.stages[1].placements",
        "serviceTime.prefill needs batching.kind Continuous",
    ),
    _bad("max and sizes", {f"{_E}.batching.sizes": [1, 2]}, f"{_E}.batching", "exactly one of max and sizes"),
    _bad("wait without a batch", {f"{_E}.batching": {"wait": "1ms"}}, f"{_E}.batching", "exactly one of max and sizes"),
    _bad(
        "falling batch sizes",
        {f"{_E}.batching": {"sizes": [4, 2]}},
        f"{_E}.batching.sizes",
        "must be in increasing order",
    ),
    _bad("sessions and kvCache", {f"{_L}.memory.sessions": 3}, f"{_L}.memory", "exactly one of sessions and kvCache"),
    _bad("memory of nothing", {f"{_L}.memory": {}}, f"{_L}.memory", "exactly one of sessions and kvCache"),
    _bad("cache too small for a session", {f"{_KV}.deviceMemory": "11Gi"}, f"{_KV}.deviceMemory", "too small"),
    _bad("session too large for the cache", {f"{_KV}.tokensPerSession": 200_000}, f"{_KV}.deviceMemory", "too small"),
    _bad("metric and query", {f"{_V}.rules[0].query": "q"}, f"{_V}.rules[0]", "exactly one of metric and query"),
    _bad(
        "neither metric nor query",
        {f"{_V}.rules[0].metric": REMOVED},
        f"{_V}.rules[0]",
        "exactly one of metric and query",
    ),
    _bad("a ratio above 1", {f"{_V}.rules[0].above": "8"}, f"{_V}.rules[0].above", "must be less than 1"),
    _bad(
        "a headroom below 20",
        {f"{_V}.rules[0].metric": "deviceHeadroom", f"{_V}.rules[0].above": REMOVED, f"{_V}.rules[0].below": "20"},
        f"{_V}.rules[0].below",
        "must be above 0 and at most 1",
    ),
    _bad("above and below", {f"{_V}.rules[0].below": "0.1"}, f"{_V}.rules[0]", "exactly one of above and below"),
    _bad(
        "neither above nor below", {f"{_V}.rules[0].above": REMOVED}, f"{_V}.rules[0]", "exactly one of above and below"
    ),
    _bad(
        "no step at all",
        {"spec.scaling.scaleUp.maxStep.replicas": 0},
        "spec.scaling.scaleUp.maxStep",
        "must be above 0",
    ),
    _bad(
        "stage without placements that is not shared",
        {"spec.stages[2].placements": REMOVED},
        "spec.stages[2].placements",
        "required without sharedFrom",
    ),
    _bad(
        "stage without a replica",
        {"spec.stages[3].placements[0].replicas.max": 0},
        "spec.stages[3].placements",
        "at least one placement must allow a replica",
    ),
    _bad(
        "after names a later stage",
        {"spec.stages[1].after": ["diarizer"]},
        "spec.stages[1].after[0]",
        "must name an earlier stage (vad)",
        on_server="spec.stages",
    ),
    _bad(
        "after names itself",
        {"spec.stages[1].after": ["encoder"]},
        "spec.stages[1].after[0]",
        "must name an earlier stage",
        on_server="spec.stages",
    ),
    _bad(
        "after names no stage",
        {"spec.stages[3].after": ["encoder", "asr"]},
        "spec.stages[3].after[1]",
        "must name an earlier stage",
        on_server="spec.stages",
    ),
    _bad(
        "entry after a stage",
        {"spec.stages[0].after": ["lm"]},
        "spec.stages[0].after[0]",
        "must name an earlier stage (this is the first one)",
        on_server="spec.stages",
    ),
    _bad(
        "a filter in a branch",
        {"spec.stages[2].passRatio": "0.9"},
        "spec.stages[2].passRatio",
        "must be 1 inside a branch",
        on_server=None,
    ),
    _bad(
        "fan-out in a branch",
        {"spec.stages[2].passRatio": "1.1"},
        "spec.stages[2].passRatio",
        "must be 1 inside a branch",
        on_server=None,
    ),
    _bad(
        "a filter behind one of two entries",
        {"spec.stages[1].after": []},
        "spec.stages[0].passRatio",
        "must be 1 inside a branch",
        on_server=None,
    ),
    _bad(
        "one target for two stages",
        {"spec.stages[2].placements[0].target.name": "vad"},
        "spec.stages[2].placements[0].target",
        "one placement only",
        on_server="spec.stages",
    ),
    _bad(
        "no model good enough",
        {"spec.sla.maxWer": "0.05"},
        "spec.stages[1].placements",
        "wer within sla.maxWer (0.05)",
        on_server="spec.stages",
    ),
    # Pools
    _bad("no device", {"spec.device": REMOVED}, "spec.device", "required", base=POOL),
    _bad("device", {"spec.device": "TPU"}, "spec.device", "must be CPU, Inferentia, Trainium or GPU", base=POOL),
    _bad("no node selector", {"spec.nodeSelector": REMOVED}, "spec.nodeSelector", "required", base=POOL),
    _bad("empty node selector", {"spec.nodeSelector": {}}, "spec.nodeSelector", "at least 1", base=POOL),
    _bad("label key", {'spec.nodeSelector["a b"]': "c"}, "spec.nodeSelector[a b]", "must be a label key", base=POOL),
    _bad("label value", {"spec.nodeSelector.zone": "-"}, "spec.nodeSelector.zone", "must be a label value", base=POOL),
    _bad("basis", {"spec.budget.basis": "Nodes"}, "spec.budget.basis", "must be Replicas or Instances"),
    _bad(
        "instance type",
        {'spec.price.byInstanceType["g5 large"]': "1"},
        "spec.price.byInstanceType[g5 large]",
        "must be an instance type such as g5.2xlarge",
        base=POOL,
        on_server="spec.price.byInstanceType",
    ),
    _bad(
        "price of an instance type",
        {"spec.price.byInstanceType": {"m": "-1"}},
        "spec.price.byInstanceType.m",
        "must be a decimal number",
        base=POOL,
    ),
    _bad(
        "a group of Kubernetes",
        {f"{_E}.target.kind": "AutoScalingGroup"},
        f"{_E}.target.apiVersion",
        "must be sluice.dev/v1alpha1 for kind AutoScalingGroup",
    ),
    _bad(
        "two ways to name types",
        {"spec.price": {"aws": {**_G5, "instanceTypes": ["g5.2xlarge"]}}},
        "spec.price.aws",
        "must be instanceType or instanceTypes, and not both",
        base=POOL,
    ),
    _bad(
        "no type",
        {"spec.price": {"aws": {"region": "us-east-1"}}},
        "spec.price.aws",
        "must be instanceType or instanceTypes",
        base=POOL,
    ),
    _bad(
        "the same type twice",
        {"spec.price": {"aws": {"instanceTypes": ["g5.xlarge", "g5.xlarge"], "region": "us-east-1"}}},
        "spec.price.aws.instanceTypes[1]",
        "must be unique",
        base=POOL,
        on_server="spec.price.aws.instanceTypes[1]",
    ),
    _bad(
        "no region",
        {"spec.price": {"aws": {"instanceType": "g5.xlarge"}}},
        "spec.price.aws.region",
        "required",
        base=POOL,
    ),
    _bad(
        "region",
        {"spec.price": {"aws": {**_G5, "region": "US East"}}},
        "spec.price.aws.region",
        "must be a region such as us-east-1",
        base=POOL,
    ),
    _bad(
        "savings on spot",
        {"spec.price": {"aws": {**_G5, "purchase": "Spot", "savings": "0.2"}}},
        "spec.price.aws.savings",
        "savings plans do not apply to it",
        base=POOL,
    ),
    _bad(
        "savings of everything",
        {"spec.price": {"aws": {**_G5, "savings": "1.0"}}},
        "spec.price.aws.savings",
        "must be less than 1",
        base=POOL,
    ),
    _bad(
        "a quota on Spot for on-demand instances",
        {"spec.capacity.quota": {"code": "L-3819A6DF", "region": "us-east-1", "vcpusPerInstance": 4}},
        "spec.capacity.quota.code",
        "is a quota on Spot instances",
        base=POOL,
    ),
    _bad(
        "a quota on on-demand instances for Spot",
        {
            "spec.capacity.quota": {
                "code": "L-DB2E81BA",
                "purchase": "Spot",
                "region": "us-east-1",
                "vcpusPerInstance": 4,
            }
        },
        "spec.capacity.quota.code",
        "is a quota on on-demand instances",
        base=POOL,
    ),
    _bad(
        "a quota of another region",
        {"spec.price": {"aws": _G5}, "spec.capacity.quota": {"family": "G", "region": "eu-west-1"}},
        "spec.capacity.quota",
        "must have the region of price.aws",
        base=POOL,
    ),
    _bad(
        "a quota on demand for Spot prices",
        {
            "spec.price": {"aws": {**_G5, "purchase": "Spot"}},
            "spec.capacity.quota": {"family": "G", "region": "us-east-1"},
        },
        "spec.capacity.quota",
        "purchase: Spot where price.aws has it",
        base=POOL,
    ),
    _bad(
        "zones on demand",
        {"spec.price": {"aws": {**_G5, "zones": ["us-east-1a"]}}},
        "spec.price.aws.zones",
        "the same in all zones",
        base=POOL,
    ),
    _bad(
        "a price every second",
        {"spec.price": {"aws": {**_G5, "refresh": "1s"}}},
        "spec.price.aws.refresh",
        "must be at least 1m",
        base=POOL,
    ),
    _bad(
        "prices of types with aws",
        {"spec.price": {"aws": _G5, "byInstanceType": {"g5.xlarge": "1"}}},
        "spec.price.byInstanceType",
        "must not be given with aws",
        base=POOL,
    ),
    _bad(
        "a quota without a name",
        {"spec.capacity.quota": {"region": "us-east-1", "vcpusPerInstance": 4}},
        "spec.capacity.quota",
        "must be family or code",
        base=POOL,
    ),
    _bad(
        "a quota that nobody knows",
        {"spec.capacity.quota": {"family": "Trn", "purchase": "Spot", "region": "us-east-1", "vcpusPerInstance": 8}},
        "spec.capacity.quota.family",
        "must be given as code for Trn on Spot",
        base=POOL,
    ),
    _bad(
        "code of a quota",
        {"spec.capacity.quota": {"code": "1945791B", "region": "us-east-1", "vcpusPerInstance": 4}},
        "spec.capacity.quota.code",
        "must be the code of a quota such as L-1945791B",
        base=POOL,
    ),
    _bad(
        "vCPUs that nothing says",
        {"spec.capacity.quota": {"family": "Inf", "region": "us-east-1"}},
        "spec.capacity.quota",
        "needs vcpusPerInstance",
        base=POOL,
    ),
    _bad(
        "two that make nodes",
        {"spec.capacity": {"nodePool": "inf2", "autoScalingGroup": "inf2"}},
        "spec.capacity",
        "must not have nodePool and autoScalingGroup",
        base=POOL,
    ),
    _bad("no price", {"spec.price": {}}, "spec.price.perHour", "required", base=POOL),
    _bad("price as a number", {"spec.price.perHour": 0.34}, "spec.price.perHour", "put it in quotes", base=POOL),
    _bad(
        "negative capacity", {"spec.capacity.instances": -1}, "spec.capacity.instances", "must be at least 0", base=POOL
    ),
    _bad("no capacity", {"spec.capacity": REMOVED}, "spec.capacity", "must say what bounds the pool", base=POOL),
    _bad("no bound", {"spec.capacity": {}}, "spec.capacity", "autoScalingGroup, quota or readyNodes: true", base=POOL),
    _bad(
        "a bound that is switched off",
        {"spec.capacity": {"readyNodes": False}},
        "spec.capacity",
        "the smallest bound counts",
        base=POOL,
    ),
    _bad("no NodePool", {"spec.capacity.nodePool": ""}, "spec.capacity.nodePool", "not be shorter than 1", base=POOL),
    _bad("a name of a NodePool", {"spec.capacity.nodePool": "A_b"}, "spec.capacity.nodePool", "a DNS name", base=POOL),
    _bad("a count of nodes", {"spec.capacity.readyNodes": 3}, "spec.capacity.readyNodes", "true or false", base=POOL),
    _bad(
        "backoff that shrinks",
        {"spec.unavailable.backoff.max": "1m"},
        "spec.unavailable.backoff.max",
        "must be at least initial (5m)",
        base=POOL,
    ),
    _bad(
        "no deadline",
        {"spec.unavailable.pendingDeadline": "0s"},
        "spec.unavailable.pendingDeadline",
        "must be longer than 0s",
        base=POOL,
    ),
    _bad("pool name", {"metadata.name": "gpu.large"}, "metadata.name", "must be a DNS label", base=POOL),
    _bad(
        "misspelt field of a pool",
        {"spec.capacity.instance": 3},
        "spec.capacity.instance",
        "did you mean instances?",
        base=changed(POOL, {"spec.capacity": {}}),
    ),
)

_REPLACEMENTS: tuple[Any, ...] = (REMOVED, None, True, 0, -1, 10**12, 0.5, "", "0", "x", "1d", "24h", [], {}, [None])


def mutations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a name and the data of every resource that one replacement anywhere in the two full ones makes."""
    for base in (PIPELINE, POOL, BUDGET):
        for path in _paths(base, ()):
            for value in _REPLACEMENTS:
                text = "".join(f"[{part}]" if isinstance(part, int) else f'["{part}"]' for part in path)
                shown = "removed" if value is REMOVED else repr(value)
                yield f"{base['kind']} {format_path(path)} {shown}", changed(base, {text: value})


def _paths(node: Any, path: FieldPath) -> Iterator[FieldPath]:
    if path and path[0] != "apiVersion" and path[0] != "kind" and path != ("metadata",):
        yield path
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _paths(value, (*path, key))
