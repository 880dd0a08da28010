"""Experiments: which runs there are, what a run tells, and that processes and seeds change what they should only."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from diagnoses import AT_S, CASES, LASTS_S
from lab_runs import eventually
from small_scenarios import a_scenario

from simulations.experiment.experiment import RunRequest, longest_first, planned_runs, run_all, run_and_bound, run_one
from simulations.experiment.hindsight import BoundRequest, bound_one
from simulations.policies.catalogue import POLICIES
from simulations.policies.sluice import SluiceSettings
from simulations.results.results import RunResult, Tuning
from simulations.scenario.scenario import Scenario

STEP = ((0.0, 10.0), (40.0, 60.0))
WHAT_IFS = (
    "[{name: dear, set: {ComputePool/gpu: {spec: {price: {perHour: '4'}}}}},"
    " {name: half, set: {SpeechPipeline/speech/captions: {spec: {budget: {perHour: '3'}}}}}]"
)


def told(result: RunResult) -> object:
    """All that a result says but how long it took."""
    return replace(result, wall_s=0.0)


def test_the_runs_are_every_policy_with_every_seed_and_what_ifs_are_for_sluice(tmp_path: Path) -> None:
    scenario = a_scenario(tmp_path, what_if=WHAT_IFS, seeds="[1, 2]", policies="[sluice, hpa]")
    runs = planned_runs(scenario)

    defaults = [(run.policy, run.what_if, run.seed) for run in runs if run.tuning is Tuning.DEFAULT]
    assert defaults == [
        ("sluice", None, 1),
        ("sluice", None, 2),
        ("hpa", None, 1),
        ("hpa", None, 2),
        ("sluice", "dear", 1),
        ("sluice", "dear", 2),
        ("sluice", "half", 1),
        ("sluice", "half", 2),
    ]
    trained = {run.policy for run in runs if run.tuning is Tuning.TRAINED}
    assert trained == {name for name in ("sluice", "hpa") if POLICIES[name].trained != POLICIES[name].default}
    named = planned_runs(scenario, policies=["hpa"], what_ifs=["half"], seeds=[7])
    assert {(run.policy, run.what_if, run.seed) for run in named} == {("hpa", None, 7), ("hpa", "half", 7)}


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return a_scenario(
        tmp_path_factory.mktemp("scenario"),
        load=STEP,
        what_if=WHAT_IFS,
        warmup_s=20,
        seeds="[1, 2]",
        policies="[sluice, hpa]",
    )


@pytest.fixture(scope="module")
def run(scenario: Scenario) -> RunResult:
    return run_one(scenario, policy="sluice", seed=1)


def test_the_interval_of_a_scenario_is_that_of_sluice_alone(tmp_path: Path) -> None:
    default = a_scenario(tmp_path, load=STEP, duration_s=60)
    quick = replace(default, file=default.file.model_copy(update={"interval": "2s"}))

    for tuning in Tuning:
        family = POLICIES["sluice"]
        settings = family.default if tuning is Tuning.DEFAULT else family.trained
        assert isinstance(settings, SluiceSettings)
        asked = replace(settings, interval_s=2.0)
        told_to = run_one(default, policy="sluice", seed=1, settings=asked, tuning=tuning)
        assert told(run_one(quick, policy="sluice", seed=1, tuning=tuning)) == told(told_to)
    assert told(run_one(quick, policy="sluice", seed=1)) != told(run_one(default, policy="sluice", seed=1))
    assert told(run_one(quick, policy="hpa", seed=1)) == told(run_one(default, policy="hpa", seed=1))


def test_a_run_s_items_add_up(run: RunResult) -> None:
    assert run.offered == run.served + run.filtered + run.shed + run.lost + run.in_flight
    assert run.offered == pytest.approx(10 * 20 + 60 * 80, rel=0.1)
    assert run.filtered == pytest.approx(run.offered / 2, rel=0.1)


def test_a_step_in_the_load_is_answered_after_the_metrics_and_the_start_up_and_not_before(run: RunResult) -> None:
    series = run.series.pipelines[0]
    asr = next(p for p in series.placements if (p.stage, p.placement) == ("asr", "gpu"))
    others = next(p for p in series.placements if (p.stage, p.placement) == ("asr", "cpu"))
    ready = dict(zip(run.series.t_s, [a + b for a, b in zip(asr.ready, others.ready, strict=True)], strict=True))
    first = next(
        entry for entry in run.decisions if any(c.stage == "asr" and c.after > c.before for c in entry.changes)
    )

    assert 40.0 < first.t_s <= 60.0, "the first decisions after the step that see it are those at 45 and 60"
    assert ready[20.0] == ready[30.0]
    # The quicker pool takes 10 s to start: nothing new serves in the window that ends at 50.
    assert ready[40.0] == ready[30.0]
    assert ready[110.0] > ready[30.0]
    assert series.offered_rps[0] == pytest.approx(10.0, rel=0.4)
    assert series.offered_rps[-1] == pytest.approx(60.0, rel=0.2)


def test_a_run_has_the_receive_pressure_that_its_cycles_read(run: RunResult) -> None:
    (by_stage,) = run.series.receive_pressure.values()
    assert by_stage
    for pressures in by_stage.values():
        known = [pressure for pressure in pressures if pressure is not None]
        assert known
        assert all(0 <= pressure <= 1 for pressure in known)


def test_a_run_tells_which_causes_its_decisions_named_at_their_highest_confidence(tmp_path: Path) -> None:
    found = run_one(CASES["data plane"].make(tmp_path), policy="sluice", seed=1)
    (episode,) = found.diagnosis
    assert (episode.named.cause, episode.named.because) == ("DataPlane", "Overhead")
    assert AT_S < episode.from_s < episode.until_s <= AT_S + LASTS_S
    assert episode.named.confidence > 0.9
    assert "outside the stages" in episode.named.evidence[0]
    assert episode.named in [cause for entry in found.decisions for cause in entry.causes]
    assert run_one(CASES["data plane"].make(tmp_path), policy="hpa", seed=1).diagnosis == ()


def test_a_run_has_a_window_for_each_and_tells_money(run: RunResult) -> None:
    assert run.series.t_s == tuple(20.0 + 10 * index for index in range(10))
    assert set(run.series.price_per_hour) == {"cpu", "gpu"}
    mean = sum(c * length for c, length in zip(run.series.pipelines[0].cost_per_hour, run.series.length_s, strict=True))
    assert run.cost == pytest.approx(mean / 3600)
    assert run.cap_violations == 0
    assert all(spend <= 30.0 for spend in run.series.pipelines[0].spend_per_hour)


def test_the_same_seed_gives_the_same_and_another_one_does_not(scenario: Scenario, run: RunResult) -> None:
    assert told(run_one(scenario, policy="sluice", seed=1)) == told(run)
    assert told(run_one(scenario, policy="sluice", seed=2)) != told(run)


def test_a_window_is_scored_by_the_sla_that_a_fault_sets(tmp_path: Path) -> None:
    strict = "{SpeechPipeline/speech/captions: {spec: {sla: {latency: 30ms, percentile: 99}}}}"
    scenario = a_scenario(tmp_path, faults=f"[{{at: 40s, for: 40s, set: {strict}}}]")
    (captions,) = run_one(scenario, policy="hpa", seed=1).series.pipelines

    assert captions.met == (True,) * 4 + (False,) * 4 + (True,) * 4
    assert captions.sla_s == (0.5,) * 4 + (0.03,) * 4 + (0.5,) * 4
    assert captions.percentile == (95.0,) * 4 + (99.0,) * 4 + (95.0,) * 4


def test_a_what_if_changes_what_it_says(scenario: Scenario, run: RunResult) -> None:
    dear = run_one(scenario, policy="static-peak", what_if="dear", seed=1)
    plain = run_one(scenario, policy="static-peak", seed=1)
    half = run_one(scenario, policy="sluice", what_if="half", seed=1)

    assert dear.offered == plain.offered == run.offered
    assert set(dear.series.price_per_hour["gpu"]) == {4.0}
    assert set(half.series.pipelines[0].budget_per_hour) == {3.0}
    assert max(half.series.pipelines[0].spend_per_hour) <= 3.0


def test_settings_of_one_s_own_take_the_place_of_those_of_the_tuning(scenario: Scenario) -> None:
    often = POLICIES["sluice"].settings_of({"interval_s": 5.0})
    result = run_one(scenario, policy="sluice", seed=1, settings=often)

    assert any(entry.t_s % 15 for entry in result.decisions)


def test_results_come_in_the_order_of_the_requests_from_one_process_or_two(scenario: Scenario) -> None:
    requests = [RunRequest(policy=policy, seed=seed) for policy in ("hpa", "sluice") for seed in (2, 1)]
    alone, seen = run_all(scenario, requests), []

    together = run_all(scenario, requests, jobs=2, progress=lambda result: seen.append((result.policy, result.seed)))

    assert [(result.policy, result.seed) for result in together] == [
        ("hpa", 2),
        ("hpa", 1),
        ("sluice", 2),
        ("sluice", 1),
    ]
    assert [told(result) for result in together] == [told(result) for result in alone]
    assert sorted(seen) == sorted((request.policy, request.seed) for request in requests)


def test_runs_and_bounds_share_processes_and_keep_their_order(scenario: Scenario) -> None:
    runs = [RunRequest(policy=policy, seed=1) for policy in ("hpa", "sluice")]
    bounds = [BoundRequest(what_if=None, seed=seed) for seed in (2, 1)]
    steps: list[None] = []

    results, found = run_and_bound(scenario, runs, bounds, jobs=2, progress=lambda: steps.append(None))

    assert [result.policy for result in results] == ["hpa", "sluice"]
    assert found == tuple(bound_one(scenario, request) for request in bounds)
    assert len(steps) == 4


def test_what_takes_longest_begins_first(scenario: Scenario) -> None:
    """The last to begin is one that ends soon: no process waits long for another."""
    runs = [RunRequest(policy=policy, seed=1) for policy in ("hpa", "sluice", "keda", "sluice")]

    assert longest_first([*runs, BoundRequest(what_if=None, seed=1)]) == [1, 3, 4, 0, 2]


def test_another_process_gives_the_same_bytes(scenario: Scenario, run: RunResult) -> None:
    """Hashes of strings differ from process to process, and must not show."""
    code = (
        "import sys; from pathlib import Path; from dataclasses import replace\n"
        "from simulations.experiment.experiment import run_one\n"
        "from simulations.scenario.scenario import load_scenario\n"
        "print(repr(replace(run_one(load_scenario(Path(sys.argv[1])), policy='sluice', seed=1), wall_s=0.0)))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(scenario.path)], capture_output=True, text=True, check=True, timeout=300
    )
    assert other.stdout.strip() == repr(told(run))


def test_a_failure_in_a_process_is_told_and_the_others_end(tmp_path: Path) -> None:
    scenario = a_scenario(tmp_path, load=STEP)
    requests = [RunRequest(policy="sluice", seed=1, what_if="none such"), RunRequest(policy="sluice", seed=1)]
    with pytest.raises(ValueError, match="no such what-if"):
        run_all(scenario, requests, jobs=2)


def test_a_policy_without_trained_settings_says_so(tmp_path: Path) -> None:
    untrained = [name for name, family in POLICIES.items() if family.trained is None]
    for name in untrained[:1]:
        with pytest.raises(ValueError, match=f"{name}: has no trained settings"):
            run_one(a_scenario(tmp_path), policy=name, seed=1, tuning=Tuning.TRAINED)


def test_a_result_can_be_written_as_json(run: RunResult) -> None:
    assert json.dumps(run.series.pipelines[0].p95_s, allow_nan=False)
    assert json.dumps([entry.t_s for entry in run.decisions], allow_nan=False)


def test_an_interrupt_ends_the_processes_and_says_nothing(tmp_path: Path) -> None:
    long = a_scenario(tmp_path, load=((0.0, 200.0),), duration_s=3000)
    code = (
        "import signal, sys; from pathlib import Path\n"
        "from simulations.experiment.experiment import RunRequest, run_all\n"
        "from simulations.scenario.scenario import load_scenario\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "    requests = [RunRequest(policy='hpa', seed=seed) for seed in range(40)]\n"
        "    try:\n"
        "        scenario = load_scenario(Path(sys.argv[1]))\n"
        "        run_all(scenario, requests, jobs=2)\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(7)\n"
    )
    program = tmp_path / "program.py"
    program.write_text(code)
    process = subprocess.Popen(
        [sys.executable, program, long.path],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        children = eventually(lambda: workers(process.pid), within_s=200.0)  # modules are compiled on a fresh machine
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=60)
        _, alive = psutil.wait_procs(children, timeout=30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    assert (process.returncode, errors) == (7, "")
    assert not alive


def workers(pid: int) -> list[psutil.Process]:
    """The two processes that a program has for its runs, once it listens to signals and they are importing modules."""
    ignored = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    if int(ignored.split()[1], 16) & 1 << (signal.SIGINT - 1):
        return []
    found = [child for child in psutil.Process(pid).children() if any("spawn_main" in word for word in child.cmdline())]
    importing = [child for child in found if "numpy" in Path(f"/proc/{child.pid}/maps").read_text()]
    return found if len(importing) == 2 else []
