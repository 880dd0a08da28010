"""What faults do to metrics: whom they are about, and that chance is the seed's."""

import pytest

from optimizer.model import PipelineKey
from profiler.samples import Absence, AbsenceReason
from simulations.cluster.metric_faults import MetricFaults
from simulations.scenario.scenario import Fault

OURS, THEIRS = PipelineKey("speech/ours"), PipelineKey("speech/theirs")


def on(*faults: dict[str, object], seed: int = 1) -> MetricFaults:
    parsed = [Fault.model_validate({"at": "0s", **fault}) for fault in faults]
    return MetricFaults(seed=seed, on=dict(enumerate(parsed)))


def test_a_loss_is_of_one_pipeline_or_of_all() -> None:
    one, both = on({"metricsLost": OURS}), on({"metricsLost": "*"})

    assert [one.lost(key) for key in (OURS, THEIRS)] == [True, False]
    assert [both.lost(key) for key in (OURS, THEIRS)] == [True, True]
    assert not on({"metricsStale": "*"}).lost(OURS)
    assert on({"metricsStale": "*"}).stale(OURS)


def test_a_part_of_the_pods_stays_away() -> None:
    part = on({"metricsPartial": {"share": "0.3", "pipeline": OURS}})
    hidden = {name for name in (f"pod-{number}" for number in range(1000)) if part.hides(OURS, name)}

    assert len(hidden) == pytest.approx(300, rel=0.15)
    assert not any(part.hides(THEIRS, name) for name in hidden)
    other = on({"metricsPartial": {"share": "0.3"}}, seed=2)
    assert hidden != {f"pod-{number}" for number in range(1000) if other.hides(OURS, f"pod-{number}")}


def test_noise_of_two_faults_adds_up_and_is_the_same_each_time() -> None:
    two = on({"metricsNoisy": {"cv": "0.3"}}, {"metricsNoisy": {"cv": "0.4"}})

    def factors(what: str) -> list[float]:
        noise = two.noise(OURS, what, 5.0)
        assert noise is not None
        return [noise.factor() for _ in range(20_000)]

    first = factors("demand")
    mean = sum(first) / len(first)
    cv = (sum((factor - mean) ** 2 for factor in first) / len(first)) ** 0.5
    assert mean == pytest.approx(1.0, abs=0.02)
    assert cv == pytest.approx(((1 + 0.3**2) * (1 + 0.4**2) - 1) ** 0.5, rel=0.05)
    assert factors("demand") == first
    assert factors("latency")[:5] != first[:5]
    assert on().noise(OURS, "demand", 5.0) is None


def test_noise_makes_no_reading_of_an_absence() -> None:
    noise = on({"metricsNoisy": {"cv": "0.3"}}).noise(OURS, "demand", 5.0)
    absent = Absence(reason=AbsenceReason.MISSING)
    assert noise is not None
    assert noise.on(absent) is absent
