"""Finds the pipeline that owns each workload where several pipelines name it. Pure.

Only the owner scales the workload, and its replicas count as the owner's spend.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from controller.core.state.spec import Mode, PipelineSpec, Target

WorkloadName = tuple[str, Target]
"""The namespace and the name of a workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seniority:
    """What decides between pipelines that name the same workload.

    `owned` are the workloads that the pipeline owned in the last cycle, also before a restart. `created` is the
    creation time of the resource in RFC 3339, in UTC.
    """

    owned: frozenset[Target] = frozenset()
    created: str = ""


def find_owners(
    specs: Iterable[PipelineSpec], seniority: Callable[[PipelineSpec], Seniority]
) -> Mapping[WorkloadName, PipelineSpec]:
    """Return the owner of every workload that a pipeline names; `seniority` is called where several name it.

    Pipelines in mode Auto come first: the others change nothing. Of these, the pipeline that owned the workload in the
    last cycle keeps it. Otherwise, the older resource owns it. A shared stage is no claim: its workloads are those of
    the pipeline that it names.
    """
    claims: dict[WorkloadName, list[PipelineSpec]] = {}
    for spec in specs:
        own = (placement for key, placement in spec.placements().items() if key[0] not in spec.borrowed)
        for target in dict.fromkeys(placement.target for placement in own):
            claims.setdefault((spec.namespace, target), []).append(spec)

    def rank(spec: PipelineSpec, target: Target) -> tuple[bool, bool, str, str]:
        senior = seniority(spec)
        return spec.mode is not Mode.AUTO, target not in senior.owned, senior.created, spec.uid

    return {
        workload: named[0] if len(named) == 1 else min(named, key=lambda spec: rank(spec, workload[1]))
        for workload, named in claims.items()
    }
