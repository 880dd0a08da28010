"""Texts for what the operator cannot read, use or write."""

from controller.core.state.spec import Target
from optimizer.model import PipelineKey, StageName

NO_ANSWER = "the metric source did not answer"


def internal_error(error: Exception) -> str:
    """Return the text about a pipeline for which `decide` raised `error`."""
    return f"internal error; replicas left unchanged: {type(error).__name__}: {error}"


def owner_words(pipeline: PipelineKey, stage: StageName) -> str:
    """Return the pipeline and stage that own a target, as text."""
    return f"{pipeline}, stage {stage}"


def owned_target(target: Target, owner: str) -> str:
    """Return the text about a target that another placement, `owner`, scales already."""
    return f"{target} belongs to pipeline {owner}; a target may be named once"


def unselected_target(target: Target) -> str:
    """Return the text about a target whose scale has no label selector."""
    return f"{target}: its scale subresource has no selector, so its pods are unknown"


def unreadable_target(target: Target, problem: str, *, unavailable: bool) -> str:
    """Return the text about a target that could not be read; `unavailable` means that the server did not answer."""
    return f"{target}: the API server did not answer: {problem}" if unavailable else f"{target}: {problem}"


def failed_scaling(target: Target, before: int, after: int, problem: str) -> str:
    """Return the text about a change of replicas that failed because of `problem`."""
    return f"scaling {target} from {before} to {after} failed: {problem}"
