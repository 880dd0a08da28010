"""A pool without capacity, and one whose nodes vanish: the stage moves to the next pool, and back."""

import re
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest
from lab_runs import SLUICE, LabRun, Seen, eventually, lab_run, processes_about

pytestmark = pytest.mark.lab

FAILING, FALLBACK = "encoder-inferentia", "encoder-gpu"
DEADLINE_S, STARTUP_S, INTERVAL_S = 4.0, 1.0, 1.0
WINDOW_S = 5.0
BUSY_S = 3.0  # the API server's times in whole seconds, and a tolerance for a busy machine


_UNAVAILABLE = re.compile(r"sluice_placement_unavailable\{[^}]*\} 1\.0")


class Witness:
    """The output of `sluice explain` and the operator's metrics when the status first reports the failure."""

    def __init__(self, folder: Path) -> None:
        self.explained = ""
        self.metrics = ""
        self._folder = folder

    def look(self, seen: Seen, kubeconfig: Path) -> None:
        if self.explained or seen.condition("PoolsAvailable").get("status") != "False":
            return
        command: list[str | Path] = [SLUICE, "explain", "speech/captions", "--kubeconfig", kubeconfig]
        explained = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        self.explained = " ".join(explained.split())  # lines are wrapped
        operator = next(line for line in processes_about(self._folder) if "controller operator" in line)
        port = re.search(r"--port (\d+)", operator)
        assert port is not None
        url = f"http://127.0.0.1:{port[1]}/metrics"

        def read() -> bool:
            with urlopen(url, timeout=5) as answer:
                self.metrics = answer.read().decode()
            return bool(_UNAVAILABLE.search(self.metrics))

        eventually(read)  # a cycle writes the status before it sets its metrics


class Fallback:
    """One of the two runs."""

    def __init__(self, scenario: Path, folder: Path) -> None:
        self.witness = Witness(folder)
        self.run: LabRun = lab_run(
            scenario,
            "--interval",
            f"{INTERVAL_S:g}",
            folder=folder,
            must_be_punctual=True,
            also=self.witness.look,
        )


@pytest.fixture(scope="module")
def unavailable(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> Fallback:
    return Fallback(scenarios / "pool-unavailable.yaml", tmp_path_factory.mktemp("pool-unavailable"))


@pytest.fixture(scope="module")
def lost(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> Fallback:
    return Fallback(scenarios / "pool-lost.yaml", tmp_path_factory.mktemp("pool-lost"))


def until_served_elsewhere_s(run: LabRun) -> float:
    """The time from the failed scheduling of the pending replicas to the first ready replica on the fallback pool."""
    serving_s = min(since_s for seen in run.seen for since_s in seen.pods_of(FALLBACK, "Ready", "True"))
    waits = [seen.pods_of(FAILING, "PodScheduled", "False") for seen in run.seen if not seen.pods_of(FALLBACK)]
    return serving_s - min(next(found for found in reversed(waits) if found))


def cap_holds(run: LabRun) -> bool:
    budget = float(run.seen[-1].resource["spec"]["budget"]["perHour"])
    spends = [window["spend_per_hour"] for window in run.report["windows"]]
    return bool(run.summary["cap_violations"] == 0 and max(spends) <= budget)


def tells(fallback: Fallback, words: str) -> None:
    """Check that status, Events, metrics and explanation report the failure, with its cause.

    The pods of one pipeline show that its placement fails, and nothing of the pool for others.
    """
    down = [seen for seen in fallback.run.seen if seen.condition("PoolsAvailable").get("status") == "False"]
    assert down, "the status says that no replica can be placed there"
    assert down[0].condition("PoolsAvailable")["reason"] == "Fragmented"
    assert words in down[0].condition("PoolsAvailable")["message"]
    assert not any(seen.available("inferentia").get("status") == "False" for seen in fallback.run.seen)
    last = fallback.run.seen[-1]
    assert "PoolsUnavailable" in {event["reason"] for event in last.events if event["type"] == "Warning"}
    unavailable = _UNAVAILABLE.findall(fallback.witness.metrics)
    assert any('pool="inferentia"' in series and 'stage="encoder"' in series for series in unavailable)
    assert "encoder on inferentia: no node can schedule this pod" in fallback.witness.explained
    assert words in fallback.witness.explained


def returned(run: LabRun, back_s: float) -> None:
    """Check that one replica tries the recovered pool, the others follow, and the replaced ones end last."""
    # A trial that has just begun when the pool recovers is the one that succeeds.
    lasts_s = DEADLINE_S + 2 * INTERVAL_S
    since = [change for change in run.changes(back_s - lasts_s, 1e9) if change["stage"] == "encoder"]
    steps = [
        after - before for change in since if change["pool"] == "inferentia" for before, after in [change["replicas"]]
    ]
    assert next(step for step in steps if step > 0) == 1
    after = [change for change in run.changes(back_s, 1e9) if change["stage"] == "encoder"]
    downs = [change for change in after if change["pool"] == "gpu"]
    assert [change["replicas"][1] for change in downs] == [0]
    assert after[-1]["pool"] == "gpu" or after.index(downs[0]) > 0
    end = run.report["windows"][-1]["replicas"]["encoder"]
    assert end["gpu"]["desired"] == 0
    assert end["inferentia"]["ready"] > 0
    assert run.seen[-1].available("inferentia")["status"] == "True"


class TestUnavailable:
    def test_the_first_replica_on_the_fallback_serves_in_time(self, unavailable: Fallback) -> None:
        assert 0 < until_served_elsewhere_s(unavailable.run) <= DEADLINE_S + 2 * INTERVAL_S + STARTUP_S + BUSY_S

    def test_no_request_is_lost_and_the_cap_holds(self, unavailable: Fallback) -> None:
        assert unavailable.run.summary["lost"] == unavailable.run.summary["shed"] == 0
        assert cap_holds(unavailable.run)

    def test_what_runs_there_stays_while_new_replicas_wait(self, unavailable: Fallback) -> None:
        waiting = [seen for seen in unavailable.run.seen if seen.pods_of(FAILING, "PodScheduled", "False")]
        alone = [seen for seen in waiting if not seen.pods_of(FALLBACK, "Ready", "True")]
        assert alone
        assert all(len(seen.pods_of(FAILING, "Ready", "True")) >= 2 for seen in alone)

    def test_everything_says_what_happened_with_the_schedulers_words(self, unavailable: Fallback) -> None:
        tells(unavailable, "untolerated taint")

    def test_work_returns_when_the_pool_delivers_again(self, unavailable: Fallback) -> None:
        returned(unavailable.run, 50.0)

    def test_trials_meanwhile_are_of_one_replica_and_farther_and_farther_apart(self, unavailable: Fallback) -> None:
        trials = [
            (decision["t_s"], change["replicas"])
            for decision in unavailable.run.report["decisions"]
            if 22.0 < decision["t_s"] < 50.0
            for change in decision["changes"]
            if change["pool"] == "inferentia" and change["replicas"][1] > change["replicas"][0]
        ]
        assert all(after - before == 1 for _, (before, after) in trials)
        assert 1 <= len(trials) <= 2


@pytest.mark.extended
class TestLost:
    def test_the_first_replica_on_the_fallback_serves_in_time(self, lost: Fallback) -> None:
        assert 0 < until_served_elsewhere_s(lost.run) <= DEADLINE_S + 2 * INTERVAL_S + STARTUP_S + BUSY_S

    def test_what_ran_there_is_retried_elsewhere_and_counted(self, lost: Fallback) -> None:
        summary = lost.run.summary
        assert summary["retries"] > 0
        outcomes = ("served", "filtered", "shed", "refused", "lost", "in_flight")
        assert summary["offered"] == sum(summary[name] for name in outcomes)
        assert summary["served"] + summary["filtered"] > 0.95 * summary["offered"]

    def test_the_cap_holds(self, lost: Fallback) -> None:
        assert cap_holds(lost.run)

    def test_everything_says_what_happened_with_the_schedulers_words(self, lost: Fallback) -> None:
        tells(lost, "didn't match Pod's node affinity/selector")

    def test_work_returns_when_the_nodes_are_back(self, lost: Fallback) -> None:
        returned(lost.run, 40.0)
