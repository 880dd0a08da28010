import logging
from dataclasses import replace

import pytest
from builders import a_spec

from controller.core.state.spec import PipelineSpec
from controller.kube.priorities import PriorityLimits
from optimizer.model import PipelineKey


def a_pipeline(namespace: str, priority: int) -> PipelineSpec:
    return replace(a_spec(priority=priority), namespace=namespace, key=PipelineKey(f"{namespace}/captions"))


LIMITS = PriorityLimits(default=10, namespaces={"speech": 1000})


@pytest.mark.parametrize(("namespace", "counts"), [("speech", 1000), ("other", 10)])
def test_a_priority_above_the_limit_of_its_namespace_counts_as_the_limit(
    namespace: str, counts: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert LIMITS.limited(a_pipeline(namespace, 5000)).priority == counts
    assert f"{namespace}/captions: spec.priority: 5000 counts as {counts}" in caplog.text


def test_a_priority_within_the_limit_counts_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    spec = a_pipeline("speech", 1000)
    assert LIMITS.limited(spec) is spec
    assert not caplog.text
