"""Stages with `sharedFrom` in a run: each pipeline gets servers of its own, because no run shares them. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from simulations.scenario.variants import with_each

_OF_THE_USER = ("name", "after", "passRatio")
_OF_THE_OWNER = ("after", "passRatio", "rules")


def with_own_servers(
    documents: Mapping[str, Mapping[str, Any]],
) -> tuple[Mapping[str, Mapping[str, Any]], tuple[str, ...]]:
    """Return those of the valid `documents` (by KIND/[NAMESPACE/]NAME) that share a stage, changed, and a note each.

    A shared stage gets the fields of the stage that it refers to, with workloads of its own.
    """
    changed: dict[str, Mapping[str, Any]] = {}
    notes: list[str] = []
    for name, document in documents.items():
        if document["kind"] != "SpeechPipeline":
            continue
        stages = document["spec"]["stages"]
        shared = [stage for stage in stages if stage.get("sharedFrom")]
        if shared:
            changed[name] = {
                **document,
                "spec": {**document["spec"], "stages": [_own(stage, name, documents) for stage in stages]},
            }
            notes += _notes(name.partition("/")[2], shared)
    return changed, tuple(notes)


def _own(stage: Mapping[str, Any], name: str, documents: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    if not (named := stage.get("sharedFrom")):
        return stage
    kind_and_namespace, _, pipeline = name.rpartition("/")
    owner = documents[f"{kind_and_namespace}/{named['pipeline']}"]
    declared = next(each for each in owner["spec"]["stages"] if each["name"] == named["stage"])

    def renamed(workload: Mapping[str, Any]) -> Mapping[str, Any]:
        target = workload.get("target")
        return workload if not target else {**workload, "target": {**target, "name": f"{target['name']}-{pipeline}"}}

    placements = [with_each(each, renamed) for each in declared["placements"]]
    return {
        **{field: stage[field] for field in _OF_THE_USER if field in stage},
        **{field: value for field, value in declared.items() if field not in (*_OF_THE_OWNER, "name")},
        "placements": placements,
    }


def _notes(pipeline: str, shared: list[Mapping[str, Any]]) -> Iterator[str]:
    for stage in shared:
        to = f"{stage['sharedFrom']['pipeline']} {stage['sharedFrom']['stage']}"
        yield (
            f"{pipeline}: {stage['name']} has servers of its own: servers shared with {to} are not simulated, and cost "
            "less than separate ones"
        )
