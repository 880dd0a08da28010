"""One release from its installation to its removal, with pods from the image; it scales a pipeline all the while."""

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helm_releases import SYSTEM
from installed import INTERVAL_S, LEASE_S, PATIENCE_S, VALUES, InstallLab, manifests
from waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

MEBIBYTE = 1024 * 1024
# Two levels in turn, each for a few cycles: there is something to decide at all times.
ALTERNATING = f"20 + 40 * (floor(vector(time() / {4 * INTERVAL_S})) % 2)"
# A takeover after a release of the Lease takes a quarter of its duration, 1 s. The rest is for a busy machine.
LONGEST_GAP_S = INTERVAL_S + 3.0


@pytest.fixture(scope="module")
def release(lab: InstallLab, measured: Callable[[str], None]) -> Iterator[InstallLab]:
    lab.clear()
    began_s = time.monotonic()
    lab.releases.helm("install", "sluice", "--wait", "--timeout", "120s", values=VALUES)
    measured(f"helm install --wait: {time.monotonic() - began_s:.1f} s")
    yield lab
    if "sluice" in lab.releases.helm("list", "--short", chart=None):
        lab.uninstall()


def leader(lab: InstallLab, namespace: str = SYSTEM) -> str:
    """Return the name of the pod that holds the Lease."""
    spec = lab.releases.get("lease", "sluice", "--namespace", namespace)["spec"]
    return str(spec.get("holderIdentity") or "").partition("_")[0]


def status_of(process: int) -> dict[str, str]:
    """Return what the kernel says of a process, by name."""
    lines = Path("/proc", str(process), "status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def root_is_read_only(process: int) -> bool:
    mounts = map(str.split, Path("/proc", str(process), "mountinfo").read_text().splitlines())
    (options,) = (mount[5] for mount in mounts if mount[4] == "/")
    return "ro" in options.split(",")


def memory_limit(process: int) -> int:
    """Return the limit of the control group of a process in bytes; control groups may be of version 1 or 2."""
    for line in Path("/proc", str(process), "cgroup").read_text().splitlines():
        number, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            return int(Path(f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes").read_text())
        if number == "0" and (limit := Path(f"/sys/fs/cgroup{group}/memory.max")).exists():
            return int(limit.read_text())
    raise AssertionError(f"process {process} is in no control group for memory")


def cycles(lab: InstallLab, since_s: float) -> list[float]:
    """Return the times at which a cycle of any pod has succeeded, as scraped since a time."""
    found = lab.query(f"sluice_last_success_timestamp_seconds[{max(1, round(time.time() - since_s))}s]")
    times = {float(value) for series in found for _, value in series["values"]}
    return sorted(each for each in times if each >= since_s)


def largest_gap(times: list[float]) -> float:
    return max(after - before for before, after in itertools.pairwise(times))


def one_at_a_time(pods: list[str]) -> bool:
    """Whether each pod's entries are next to each other."""
    runs = [pod for pod, _ in itertools.groupby(pods)]
    return len(runs) == len(set(runs))


def test_it_is_ready_with_two_replicas_and_one_leader(release: InstallLab) -> None:
    pods = release.pods(SYSTEM)
    assert len(pods) == 2
    until(lambda: leader(release) in pods)
    for pod in pods.values():
        (status,) = pod["status"]["containerStatuses"]
        assert (status["ready"], status["restartCount"]) == (True, 0)


def test_its_pods_run_as_the_chart_says(release: InstallLab) -> None:
    for pod in release.pods(SYSTEM).values():
        process = release.host.process(pod)
        facts = status_of(process)
        assert facts["Uid"].split() == ["65532"] * 4
        assert (int(facts["CapBnd"], 16), facts["NoNewPrivs"], facts["Seccomp"]) == (0, "1", "2")
        assert root_is_read_only(process)
        assert memory_limit(process) == 512 * MEBIBYTE


def test_helm_test_passes(release: InstallLab) -> None:
    assert "Succeeded" in release.releases.helm("test", "sluice", "--timeout", "60s", chart=None)


def test_it_scales_a_pipeline_that_is_applied(release: InstallLab) -> None:
    for manifest in manifests("speech"):
        release.releases.apply(manifest)
    until(lambda: release.replicas("speech") >= 3, within_s=PATIENCE_S)
    until(lambda: ready(release), within_s=PATIENCE_S)
    release.releases.apply(manifests("speech", demand="vector(60)")[1])
    until(lambda: release.replicas("speech") >= 7, within_s=PATIENCE_S)


def ready(lab: InstallLab) -> bool:
    conditions = lab.releases.get("speechpipeline", "captions", "--namespace", "speech")["status"]["conditions"]
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def settled(lab: InstallLab) -> bool:
    """Whether the workload has the replicas that were decided last, for the present spec."""
    pipeline = lab.releases.get("speechpipeline", "captions", "--namespace", "speech")
    status = pipeline.get("status", {})
    if status.get("observedGeneration") != pipeline["metadata"]["generation"]:
        return False
    (placement,) = status["stages"][0]["placements"]
    return bool(lab.replicas("speech") == placement["desired"])


def test_an_upgrade_with_other_values_misses_no_decision(release: InstallLab, measured: Callable[[str], None]) -> None:
    for manifest in manifests("speech", demand=ALTERNATING):
        release.releases.apply(manifest)
    metadata = {"name": "prometheus", "namespace": SYSTEM}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"password": "secret"}}
    release.releases.apply(secret)
    before = release.pods(SYSTEM)
    until(lambda: leader(release) in before)
    since_s, written = time.time(), len(release.audited_writes())
    until(lambda: len(release.audited_writes()) > written, within_s=PATIENCE_S)  # the old leader writes
    began_s = time.monotonic()
    values = {**VALUES, "prometheus": {"auth": {"basic": {"username": "sluice", "secretName": "prometheus"}}}}
    release.releases.helm("upgrade", "sluice", "--wait", "--timeout", "120s", values=values)
    took_s = time.monotonic() - began_s
    until(lambda: not before.keys() & release.pods(SYSTEM).keys(), within_s=PATIENCE_S)
    until(lambda: release.audited_writes()[-1][1] not in before, within_s=PATIENCE_S)
    writers = [pod for _, pod, _ in release.audited_writes()[written:]]
    gap_s = largest_gap(cycles(release, since_s))
    measured(f"helm upgrade --wait: {took_s:.1f} s, longest time without a cycle of {INTERVAL_S} s: {gap_s:.1f} s")
    assert one_at_a_time(writers), writers
    assert gap_s <= LONGEST_GAP_S


def test_another_replica_takes_over_when_the_leader_is_killed(
    release: InstallLab, measured: Callable[[str], None]
) -> None:
    for manifest in manifests("speech", demand=ALTERNATING):
        release.releases.apply(manifest)
    pods = release.pods(SYSTEM)
    until(lambda: leader(release) in pods and release.audited_writes()[-1][1] == leader(release), within_s=PATIENCE_S)
    killed, written = leader(release), len(release.audited_writes())
    began_s = time.monotonic()
    os.kill(release.host.process(pods[killed]), signal.SIGKILL)
    until(lambda: leader(release) not in {"", killed}, within_s=PATIENCE_S)
    took_s = time.monotonic() - began_s
    until(lambda: release.audited_writes()[-1][1] == leader(release), within_s=PATIENCE_S)
    measured(f"killed leader: another one after {took_s:.1f} s, with a lease of {LEASE_S} s")
    assert one_at_a_time([pod for _, pod, _ in release.audited_writes()[written:]])

    def restarted() -> Any:
        (status,) = release.pods(SYSTEM)[killed]["status"]["containerStatuses"]
        return status["ready"] and status["restartCount"] == 1

    until(restarted, within_s=PATIENCE_S)


def test_uninstall_leaves_the_workloads_as_they_are_and_nothing_of_ours_but_the_crds(
    release: InstallLab, measured: Callable[[str], None]
) -> None:
    for manifest in manifests("speech"):
        release.releases.apply(manifest)
    until(lambda: settled(release), within_s=PATIENCE_S)
    for name, pod in release.pods(SYSTEM).items():
        facts = status_of(release.host.process(pod))
        resident, peak = (int(facts[key].split()[0]) // 1024 for key in ("VmRSS", "VmHWM"))
        role = "leader" if name == leader(release) else "standby"
        measured(f"memory of the {role} with one pipeline: {resident} MiB, at most {peak} MiB")
    release.uninstall()
    assert release.releases.ours() == []
    left = {line.rpartition("/")[2] for line in release.releases.kubectl("get", "crd", "--output=name").split()}
    assert left == {f"{plural}.sluice.dev" for plural in ("speechpipelines", "computepools", "computebudgets")}
    assert settled(release)
