"""A flood of datagrams fills a replica's receive buffer, the rule adds replicas in each zone, and the pressure falls.

The sockets and what the kernel tells about them are real, and so are the exporters; `receive_flood` says what is not.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from lab_runs import LabRun, Seen, lab_run
from receive_flood import Exporters, Flood

pytestmark = [pytest.mark.lab, pytest.mark.extended]

NAMESPACE, STAGE = "speech", "vad"
NODES = ("cpu-0", "cpu-1")
ZONES = 2
ADDED = 2
"""Replicas that the rule adds in each zone."""
THRESHOLD = 0.8
TAKEN_PER_S, FLOOD_PER_S, FLOOD_S = 60.0, 66.0, 65.0
"""A replica takes a tenth less than is sent: its buffer is full after about 25 s. Two replicas take it all."""
RECOVERED_S = 12.0
"""Time from the readiness of the new replicas until the pressure is low: the buffer empties, then the window passes."""


@dataclass
class Story:
    """What happens beside the run, and the worst pressure of the stage's pods by time (monotonic clock)."""

    folder: Path
    flood: Flood
    pressures: list[tuple[float, float]] = field(default_factory=list)
    ready: list[tuple[float, int]] = field(default_factory=list)
    exporters: Exporters | None = None

    def go_on(self, seen: Seen, kubeconfig: Path) -> None:
        """Start the exporters when the cluster has the pipeline, and the flood when they know the pressure of a pod."""
        if not seen.resource:
            return
        if self.exporters is None:
            self.exporters = Exporters(self.folder, kubeconfig)
            self.exporters.start(NODES)
            with config.new_client_from_config(str(kubeconfig)) as api:
                zone = {"metadata": {"labels": {"topology.kubernetes.io/zone": "lab-b"}}}
                client.CoreV1Api(api).patch_node(NODES[-1], zone, _request_timeout=(3, 10))
        own = [pod for pod in seen.pods if pod["metadata"].get("labels", {}).get("app") == STAGE]
        self.exporters.show(own)
        ready = [pod for pod in own if _is_ready(pod)]
        self.flood.deliver_to(pod["status"]["podIP"] for pod in ready)
        self.ready.append((seen.at_s, len(ready)))
        known = [value for (_, name), value in self.exporters.pressures().items() if name.startswith(f"{STAGE}-")]
        if known:
            self.pressures.append((seen.at_s, max(known)))
            if self.flood.began_s is None and ready and any("rxQueuePressure" in stage for stage in stages(seen)):
                self.flood.begin()

    def close(self) -> None:
        self.flood.close()
        if self.exporters is not None:
            self.exporters.close()

    def first_above_s(self, pressure: float) -> float:
        return next(at_s for at_s, value in self.pressures if value > pressure)


def stages(seen: Seen) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = seen.status.get("stages", [])
    return found


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


@pytest.fixture(scope="module")
def told(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[LabRun, Story]:
    folder = tmp_path_factory.mktemp("receive-pressure")
    flood = Flood(rate_per_s=FLOOD_PER_S, taken_per_s=TAKEN_PER_S, duration_s=FLOOD_S)
    story = Story(folder=tmp_path_factory.mktemp("exporters"), flood=flood)
    try:
        run = lab_run(
            scenarios / "receive-pressure.yaml",
            "--interval",
            "2",
            folder=folder,
            must_be_punctual=False,
            also=story.go_on,
        )
    finally:
        story.close()
    return run, story


@pytest.fixture
def run(told: tuple[LabRun, Story]) -> LabRun:
    return told[0]


@pytest.fixture
def story(told: tuple[LabRun, Story]) -> Story:
    return told[1]


def desired(run: LabRun, from_s: float, until_s: float) -> list[int]:
    """Return the desired replicas in an interval of the monotonic clock, as the status has them."""
    return [
        placement["desired"]
        for seen in run.seen
        if from_s <= seen.at_s < until_s
        for stage in stages(seen)
        for placement in stage["placements"]
        if "desired" in placement
    ]


def changes(run: LabRun) -> list[tuple[list[int], str]]:
    """Return the decided changes with the reason of their decision."""
    return [(change["replicas"], made["reason"]) for made in run.report["decisions"] for change in made["changes"]]


def test_the_pressure_rises_before_the_first_datagram_is_lost(story: Story) -> None:
    began_s = story.flood.began_s
    assert began_s is not None, "the flood did not begin"
    assert all(value < 0.3 for at_s, value in story.pressures if at_s < began_s)
    above_s = story.first_above_s(THRESHOLD)
    assert above_s > began_s
    assert story.flood.first_loss_s is None or above_s < story.flood.first_loss_s


def test_the_rule_adds_its_replicas_in_each_zone(run: LabRun, story: Story) -> None:
    assert set(desired(run, 0.0, story.first_above_s(THRESHOLD))) == {1}
    (before, after), reason = next((replicas, reason) for replicas, reason in changes(run) if replicas[1] > replicas[0])
    assert (before, after) == (1, 1 + ADDED * ZONES)
    assert "threshold rule" in reason
    shown = [
        float(stage["rxQueuePressure"]) for seen in run.seen for stage in stages(seen) if "rxQueuePressure" in stage
    ]
    assert max(shown) > THRESHOLD


def test_the_pressure_falls_while_the_flood_goes_on(story: Story) -> None:
    more_s = next(at_s for at_s, count in story.ready if count >= 1 + ADDED * ZONES)
    flooded = [value for at_s, value in story.pressures if more_s + RECOVERED_S <= at_s < story.flood.ended_s]
    assert flooded, "the flood ended before the new replicas had served for long enough"
    assert max(flooded) < 0.3


def test_the_replicas_are_given_back_after_the_flood(run: LabRun, story: Story) -> None:
    during = desired(run, 0.0, story.flood.ended_s)
    after = desired(run, story.flood.ended_s, float("inf"))
    assert max(during) > 1
    assert after[-1] == 1
