"""Windows follow the scrape interval that is observed."""

import pytest
from builders import a_spec

from controller.core.state.spec import PipelineSpec
from controller.kube.observed_windows import ObservedWindows
from optimizer.model import PlacementId
from profiler.samples import Scrapes


def scrapes(spec: PipelineSpec, interval_s: float | None) -> dict[PlacementId, Scrapes]:
    return {(spec.key, *key): Scrapes(interval_s=interval_s) for key in spec.placement_keys()}


def windows_s(spec: PipelineSpec) -> set[float]:
    return {stage.metrics_window_s for stage in spec.stages}


@pytest.mark.parametrize(
    ("interval_s", "expected_s"), [(None, 60.0), (1.0, 60.0), (15.0, 60.0), (16.5, 60.0), (30.0, 120.0), (60.0, 240.0)]
)
def test_a_window_has_at_least_four_intervals(interval_s: float | None, expected_s: float) -> None:
    spec, windows = a_spec(), ObservedWindows()
    assert windows_s(spec) == {60.0}
    assert windows.applied(spec) is spec
    windows.observe([spec], scrapes(spec, interval_s))
    assert windows_s(windows.applied(spec)) == {expected_s}


def test_it_stays_while_no_interval_is_observed_and_ends_with_the_pipeline() -> None:
    spec, windows = a_spec(), ObservedWindows()
    windows.observe([spec], scrapes(spec, 30.0))
    windows.observe([windows.applied(spec)], scrapes(spec, None))
    assert windows_s(windows.applied(spec)) == {120.0}
    windows.observe([], {})
    assert windows_s(windows.applied(spec)) == {60.0}
