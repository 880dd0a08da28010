from stated_scenarios import COLD_START, stated

from simulations.experiment.experiment import run_one
from simulations.results.run_times import in_run_times


def test_a_time_is_seconds_of_the_run() -> None:
    sentence = "SLA missed since 1970-01-01T00:01:02Z: p95 1.14 s of 1 s"
    assert in_run_times(sentence) == "SLA missed since 62 s: p95 1.14 s of 1 s"
    assert in_run_times("missed since 2026-11-25T20:38:19Z", 1795639000.0) == "missed since 99 s"
    assert in_run_times("no change: demand 3 streams") == "no change: demand 3 streams"


def test_the_decisions_of_a_simulated_run_have_no_date() -> None:
    reasons = [decision.reason for decision in run_one(stated(COLD_START), policy="sluice", seed=1).decisions]
    assert [reason for reason in reasons if reason.startswith("SLA missed since")]
    assert not [reason for reason in reasons if "1970" in reason]
