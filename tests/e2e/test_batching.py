"""Batch settings on real servers: what Sluice writes to a ConfigMap is how the servers then form batches."""

import json
import re
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import urllib3
from kubernetes import client, config
from lab_runs import LabRun, Seen, lab_run

pytestmark = [pytest.mark.lab, pytest.mark.extended]

BY_HAND = {"max": 1, "waitMicroseconds": 0}
SYNC_S = 10.0
"""How long the lab's agent takes to let workers read a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the ConfigMap had, and how many items and batches the workers had served, on the monotonic clock."""

    at_s: float
    settings: dict[str, int]
    items: float
    batches: float


def counted(text: str, name: str) -> float:
    """Return the sum of the counter `speech_stage_NAME_total` in an exposition."""
    return sum(map(float, re.findall(rf"^speech_stage_{name}_total\{{.*\}} (\S+)$", text, re.MULTILINE)))


def counters(seen: Seen) -> tuple[float, float]:
    """Return the items and the batches that the present workers have served."""
    texts = []
    for pod in seen.pods:
        conditions = pod.get("status", {}).get("conditions", [])
        if any(own["type"] == "Ready" and own["status"] == "True" for own in conditions):
            url = f"http://{pod['status']['podIP']}:7001/metrics"
            texts.append(urllib3.request("GET", url, timeout=2.0).data.decode())
    return sum(counted(text, "items") for text in texts), sum(counted(text, "batches") for text in texts)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return []


@pytest.fixture(scope="module")
def run(scenarios: Path, samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    def also(seen: Seen, kubeconfig: Path) -> None:
        with config.new_client_from_config(str(kubeconfig)) as api:
            core = client.CoreV1Api(api)
            found = core.read_namespaced_config_map("batching", "speech")
            if not found.data:
                core.patch_namespaced_config_map("batching", "speech", {"data": {"asr": json.dumps(BY_HAND)}})
                return
        items, batches = counters(seen)
        settings = json.loads(found.data["asr"])
        samples.append(Sample(at_s=time.monotonic(), settings=settings, items=items, batches=batches))

    folder = tmp_path_factory.mktemp("batching")
    return lab_run(scenarios / "batching.yaml", folder=folder, must_be_punctual=False, also=also)


def mean_batch(samples: list[Sample]) -> float:
    """Return the mean size of the batches between the first and the last of `samples`."""
    rises = [(b.items - a.items, b.batches - a.batches) for a, b in pairwise(samples)]
    kept = [(items, batches) for items, batches in rises if items >= 0 and batches > 0]  # not while replicas go
    return sum(items for items, _ in kept) / sum(batches for _, batches in kept)


def desired(status: dict[str, Any]) -> int:
    """Return the desired replicas of the only placement."""
    return int(status["stages"][0]["placements"][0]["desired"])


def test_the_settings_change_when_the_load_rises_and_the_servers_follow(run: LabRun, samples: list[Sample]) -> None:
    before = [own for own in samples if own.settings == BY_HAND]
    after = [own for own in samples if own.settings != BY_HAND]
    assert before
    assert after
    assert after[-1].settings == {"max": 8, "waitMicroseconds": 0}
    assert all(own.settings == after[-1].settings for own in after), "it is not changed back and forth"
    by_hand = [own for own in before if own.at_s >= before[0].at_s + SYNC_S + 2]
    assert mean_batch(by_hand) == pytest.approx(1.0, abs=1e-6)
    last = [own for own in after if own.at_s >= after[-1].at_s - 15]
    assert mean_batch(last) > 1.3


def test_replicas_that_the_settings_make_superfluous_go_when_all_servers_must_have_them(
    run: LabRun, samples: list[Sample]
) -> None:
    written_s = next(own.at_s for own in samples if own.settings != BY_HAND)
    statuses = [(seen.at_s - written_s, seen.status) for seen in run.seen if seen.status.get("stages")]
    settings = [
        (at_s, status["stages"][0]["placements"][0].get("batching"), desired(status)) for at_s, status in statuses
    ]
    meanwhile = [(own, count) for at_s, own, count in settings if 10 <= at_s < 110]
    assert all(own == {"max": 8, "waitMicroseconds": 0, "inForce": False} for own, _ in meanwhile)
    _, own, count = settings[-1]
    assert own == {"max": 8, "waitMicroseconds": 0, "inForce": True}
    assert count < max(most for _, most in meanwhile) / 2


def test_a_change_is_an_event_that_says_what_was_before(run: LabRun) -> None:
    events = {(own["reason"], own["message"]) for seen in run.seen for own in seen.events}
    (message,) = (words for reason, words in events if reason == "BatchingWritten")
    assert message == (
        "asr on cpu: batches of up to 8 written to ConfigMap batching, key asr; before: batches of up to 1"
    )


def test_the_sla_holds_while_servers_change_over(run: LabRun) -> None:
    late = [own for own in run.report["windows"] if own["t_s"] >= 75 and (own["p95_s"] is None or own["p95_s"] > 0.4)]
    assert late == []
