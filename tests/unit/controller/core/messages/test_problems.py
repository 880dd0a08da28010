"""The texts about what the operator cannot read, use or write."""

from controller.core.messages.problems import (
    failed_scaling,
    internal_error,
    owned_target,
    owner_words,
    unreadable_target,
)
from controller.core.state.spec import Target
from optimizer.model import PipelineKey, StageName

TARGET = Target(kind="Deployment", name="asr", api_version="apps/v1")


def test_a_problem_names_the_workload_and_the_cause() -> None:
    assert failed_scaling(TARGET, 3, 5, "403 forbidden") == "scaling Deployment/asr from 3 to 5 failed: 403 forbidden"
    assert unreadable_target(TARGET, "403 forbidden", unavailable=False) == "Deployment/asr: 403 forbidden"
    away = unreadable_target(TARGET, "timeout", unavailable=True)
    assert away == "Deployment/asr: the API server did not answer: timeout"
    owner = owner_words(PipelineKey("speech/captions"), StageName("decoder"))
    assert owned_target(TARGET, owner).startswith("Deployment/asr belongs to pipeline speech/captions, stage decoder")


def test_an_internal_error_says_that_nothing_changes() -> None:
    assert internal_error(ValueError("x")) == "internal error; replicas left unchanged: ValueError: x"
