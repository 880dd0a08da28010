"""The decision record: a decision with its snapshot and policy, so that the decision can be repeated and examined."""

from collections.abc import Iterator, Mapping
from typing import Any

from controller.core.codec import InvalidRecord, Json, decode, encode
from controller.core.messages.diagnosis import cause_words
from controller.core.messages.explain import reason_sentence
from controller.core.state.decision import Decision, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot

SCHEMA = "sluice.dev/decision-record/v1"
_NOT_THERE = "not there"


def decision_record(snapshot: Snapshot, decision: Decision) -> dict[str, Json]:
    """Return the record of `decision`, which was made from `snapshot`, as JSON."""
    return {
        "schema": SCHEMA,
        "policy": encode(decision.policy),
        "snapshot": encode(snapshot),
        "decision": _answer(decision),
    }


def recorded_inputs(record: dict[str, Json]) -> tuple[Snapshot, Policy]:
    """Return the snapshot and the policy of the recorded decision, for `decide` to repeat it.

    Raises:
        InvalidRecord: `record` is of another schema or damaged.
    """
    if record.get("schema") != SCHEMA:
        raise InvalidRecord(f"record.schema: {record.get('schema')!r}: must be {SCHEMA!r}")
    snapshot = decode(Snapshot, record.get("snapshot"), "record.snapshot")
    return snapshot, decode(Policy, record.get("policy"), "record.policy")


def differences(record: dict[str, Json], decision: Decision) -> tuple[str, ...]:
    """Return the differences of `decision` from the recorded decision, each as `path: <recorded>, now <value>`."""
    return tuple(_differences("", record.get("decision"), _answer(decision)))


def decision_key(pipeline: PipelineDecision) -> object:
    """Return a key by which two decisions for a pipeline are equal if they decide the same.

    The key has the changes, the desired and the recommended replicas, the reasons of the holds, the binding constraint,
    whether load is shed, the causes of a missed SLA, and the batch settings to write. Readings and times are left out,
    because they differ in every cycle.
    """
    limit = None if pipeline.plan is None else pipeline.plan.limited_by
    holds = frozenset((hold.reason, hold.stage) for hold in pipeline.holds)
    replicas = dict(pipeline.desired), dict(pipeline.recommended)
    causes = frozenset((each.cause, each.stage) for each in pipeline.diagnosis)
    return pipeline.changes, replicas, holds, limit, pipeline.admissible is not None, causes, pipeline.batch_writes


def recorded_decision_key(pipeline: Mapping[str, Any]) -> object:
    """Return the `decision_key` of `pipeline`, one of the values of `decision.pipelines` in a record."""
    limit = None if pipeline["plan"] is None else pipeline["plan"]["limited_by"]
    holds = frozenset((hold["reason"], hold["stage"]) for hold in pipeline["holds"])
    replicas = pipeline["desired"], pipeline.get("recommended")
    causes = frozenset((each["cause"], each["stage"]) for each in pipeline.get("diagnosis", ()))
    written = pipeline.get("batch_writes", [])
    return pipeline["changes"], replicas, holds, limit, pipeline["admissible"] is not None, causes, written


def recorded_diagnosis(pipeline: PipelineDecision) -> list[Json]:
    """Return the causes of a missed SLA as the record has them: each finding with its evidence and remedy as text.

    The texts need the whole decision, which a reader of the record does not have.
    """
    found: list[Json] = []
    for finding in pipeline.diagnosis:
        words, fields = cause_words(finding, pipeline), encode(finding)
        assert isinstance(fields, dict)
        found.append({**fields, "evidence": list(words.evidence), "remedy": words.remedy})
    return found


def _answer(decision: Decision) -> dict[str, Json]:
    return {
        "now_s": decision.now_s,
        "pipelines": {
            pipeline.key: {
                "outcome": pipeline.outcome.value,
                "message": reason_sentence(pipeline),
                "observed": encode(pipeline.demand.observed),
                "forecast": encode(pipeline.demand.forecast),
                "demand": encode(pipeline.demand.planned),
                **({} if pipeline.demand.known is None else {"at_least": pipeline.demand.known.name}),
                **({"recommended": encode(pipeline.recommended)} if pipeline.recommended else {}),
                **({"diagnosis": recorded_diagnosis(pipeline)} if pipeline.diagnosis else {}),
                **{
                    name: encode(getattr(pipeline, name))
                    for name in (
                        *("holds", "changes", "switches", "rules"),
                        *("spend_per_hour", "admissible", "profile", "plan", "desired", "unconstrained"),
                    )
                },
            }
            for pipeline in decision.pipelines
        },
        "pools": encode(decision.pools),
    }


def _differences(path: str, recorded: Json, now: Json) -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*recorded, *now]):
            inside = f"{path}.{name}" if path else name
            yield from _differences(inside, recorded.get(name, _NOT_THERE), now.get(name, _NOT_THERE))
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for index, (one, other) in enumerate(zip(recorded, now, strict=True)):
            yield from _differences(f"{path}[{index}]", one, other)
    elif recorded != now:
        yield f"{path}: {recorded}, now {now}"
