"""Texts for what the operator cannot read, use or write."""

from collections.abc import Mapping

from controller.core.state.shared import SharingProblem, Unresolved
from controller.core.state.spec import Target
from optimizer.model import PipelineKey, StageName

NO_ANSWER = "the metric source did not answer"
NOT_READ = "not read"
NO_ROOM = "the annotations of the Lease have no room for it"
NO_LEASE = "leader election is disabled, so there is no Lease to keep its memory in"


def internal_error(error: Exception) -> str:
    """Return the text about a pipeline for which `decide` raised `error`."""
    return f"internal error; replicas left unchanged: {type(error).__name__}: {error}"


def own_error(error: Exception) -> str:
    """Return the text about `error`, a defect of the operator."""
    return f"internal error: {type(error).__name__}: {error}"


def owner_words(pipeline: PipelineKey, stage: StageName) -> str:
    """Return the pipeline and stage that own a target, as text."""
    return f"{pipeline}, stage {stage}"


_SHARING: Mapping[SharingProblem, str] = {
    SharingProblem.NO_PIPELINE: "pipeline {pipeline} does not exist or is not valid",
    SharingProblem.NO_STAGE: "pipeline {pipeline} has no stage {stage}",
    SharingProblem.CHAIN: "stage {stage} of pipeline {pipeline} is itself shared from another pipeline; name that one",
    SharingProblem.BACKLOG: "pipeline {pipeline} has demand.backlog: its replicas go first, so it shares no stage",
    SharingProblem.ITSELF: "must name a stage of another pipeline",
}


def unresolved_sharing(unresolved: Unresolved) -> str:
    """Return the text about a stage that cannot be shared from the stage that it names."""
    pipeline, stage = unresolved.to
    words = _SHARING[unresolved.problem].format(pipeline=pipeline, stage=stage)
    return f"stage {unresolved.stage}: sharedFrom {pipeline}, stage {stage}: {words}; replicas left unchanged"


def owned_target(target: Target, owner: str) -> str:
    """Return the text about a target that another placement, `owner`, scales already."""
    return f"{target} belongs to pipeline {owner}; a target may be named once"


def unselected_target(target: Target) -> str:
    """Return the text about a target whose scale has no label selector."""
    return f"{target}: its scale subresource has no selector, so its pods are unknown"


def foreign_group(name: str, namespace: str, tag: str) -> str:
    """Return the text about an Auto Scaling group that pipelines of `namespace` may not scale."""
    return f"AutoScalingGroup/{name}: must have the tag {tag}={namespace}; without it no pipeline there may scale it"


def unreadable_target(target: Target, problem: str, *, unavailable: bool) -> str:
    """Return the text about a target that could not be read; `unavailable` means that the server did not answer."""
    return f"{target}: the API server did not answer: {problem}" if unavailable else f"{target}: {problem}"


def foreign_pipeline(own: str, other: str) -> str:
    """Return the text about a pipeline that the operator `other` scales; `own` is the one that says so."""
    return (
        f"operator {own or 'without a Lease'} leaves this pipeline alone: status.operator is {other}; "
        "remove one of the two, or give each its own namespaces"
    )


def recovered(condition: str, status: str) -> str:
    """Return the text about a condition that has become good again, where it has no message of its own."""
    return f"condition {condition} is {status} again"


def unwritten_status(problem: str, withheld: str | None) -> str:
    """Return the text about a status that cannot be written, and about what becomes of the pipeline.

    `withheld` is why its memory is not kept in the Lease either, so that its replicas are not changed; None: they are.
    """
    unwritten = f"the status cannot be written and shows an earlier decision: {problem}"
    if withheld is None:
        return f"{unwritten}; the pipeline is scaled, and what a restart needs is kept in the Lease"
    return f"{unwritten}; replicas left unchanged, because what a restart needs cannot be kept in the Lease: {withheld}"


def failed_scaling(target: Target, before: int, after: int, problem: str) -> str:
    """Return the text about a change of replicas that failed because of `problem`."""
    return f"scaling {target} from {before} to {after} failed: {problem}"
