"""The decision record: a decision with all it was made from, so that it can be made again and looked into."""

from controller.core.codec import InvalidRecord, Json, decode, encode
from controller.core.decision import Decision
from controller.core.explain import reason_sentence
from controller.core.policy import Policy
from controller.core.snapshot import Snapshot

SCHEMA = "sluice.dev/decision-record/v1"


def decision_record(snapshot: Snapshot, decision: Decision) -> dict[str, Json]:
    """Return the record of `decision`, which was made from `snapshot`, as JSON."""
    return {
        "schema": SCHEMA,
        "policy": encode(decision.policy),
        "snapshot": encode(snapshot),
        "decision": {
            "now_s": decision.now_s,
            "pipelines": {
                pipeline.key: {
                    "outcome": pipeline.outcome.value,
                    "message": reason_sentence(pipeline),
                    **{
                        name: encode(getattr(pipeline, name))
                        for name in (
                            *("observed", "forecast", "demand", "holds", "changes", "rules"),
                            *("spend_per_hour", "admissible", "profile", "plan", "desired", "unconstrained"),
                        )
                    },
                }
                for pipeline in decision.pipelines
            },
            "pools": encode(decision.pools),
        },
    }


def snapshot_from_record(record: dict[str, Json]) -> Snapshot:
    """Return what the recorded decision was made from: `decide` makes it again.

    Raises:
        InvalidRecord: `record` is of another schema or damaged.
    """
    _check_schema(record)
    return decode(Snapshot, record.get("snapshot"), "record.snapshot")


def policy_from_record(record: dict[str, Json]) -> Policy:
    """Return the settings that the recorded decision was made under.

    Raises:
        InvalidRecord: `record` is of another schema or damaged.
    """
    _check_schema(record)
    return decode(Policy, record.get("policy"), "record.policy")


def _check_schema(record: dict[str, Json]) -> None:
    if record.get("schema") != SCHEMA:
        raise InvalidRecord(f"record.schema: {record.get('schema')!r}: must be {SCHEMA!r}")
