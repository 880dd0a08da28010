"""Runs `sluice lab run` and `sluice demo` as a user does, and observes their cluster meanwhile."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from simulations.lab.session.run import max_lag_s
from simulations.scenario.scenario import load_scenario

T = TypeVar("T")
SLUICE = Path(sys.executable).parent / "sluice"

_POLL_S = 0.5
_LIMIT_S = 240.0
_END_S = 20.0
_TIMEOUT_S = (3, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The pipelines of a run, by name, its pools and its pods on the API server, `at_s` on the monotonic clock."""

    at_s: float
    pipelines: dict[str, dict[str, Any]]
    events: list[dict[str, Any]]
    pools: dict[str, dict[str, Any]]
    pool_events: list[dict[str, Any]]
    pods: list[dict[str, Any]]

    @property
    def resource(self) -> dict[str, Any]:
        """Return the first pipeline; empty before it is applied."""
        return next(iter(self.pipelines.values()), {})

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.resource.get("status", {})
        return found

    def backlog(self, pipeline: str) -> dict[str, Any]:
        """Return what the status of a pipeline says of its backlog; empty if it says nothing."""
        found: dict[str, Any] = self.pipelines.get(pipeline, {}).get("status", {}).get("backlog", {})
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        """Return the condition of that type; empty if it is missing."""
        return next((c for c in self.status.get("conditions", []) if c["type"] == kind), {})

    def available(self, pool: str) -> dict[str, Any]:
        """Return the condition of a pool about its capacity; empty if it is missing."""
        conditions = self.pools.get(pool, {}).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == "Available"), {})

    def pods_of(self, app: str, condition: str = "PodScheduled", status: str | None = None) -> list[float]:
        """Return the times since when the pods of a Deployment have a condition, in whole seconds since the epoch."""
        return [
            datetime.fromisoformat(found["lastTransitionTime"]).timestamp()
            for pod in self.pods
            if pod["metadata"].get("labels", {}).get("app") == app and "deletionTimestamp" not in pod["metadata"]
            for found in pod.get("status", {}).get("conditions", [])
            if found["type"] == condition and status in {None, found["status"]} and found.get("lastTransitionTime")
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRun:
    """A finished run. `lines` are those of standard output, each with the time at which it was read.

    `operator_log` is the log that the run has kept; the file is missing without an operator. A load that was later than
    `max_lag_s` makes the run invalid.
    """

    code: int
    stdout: str
    lines: list[tuple[float, str]]
    seen: list[Seen]
    report: dict[str, Any]
    operator_log: Path
    max_lag_s: float

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = self.report["summary"]
        return found

    @property
    def was_late(self) -> bool:
        """Whether the load generator was late, which makes the run invalid."""
        lag_s: float = self.summary["generator_lag_p99_s"]
        return lag_s > self.max_lag_s

    def heard_s(self, words: str) -> float:
        """Return the time of the first line with `words`."""
        return next(at_s for at_s, line in self.lines if words in line)

    def changes(self, from_s: float, until_s: float) -> list[dict[str, Any]]:
        """Return the decided changes in an interval of the run's time."""
        return [
            change
            for decision in self.report["decisions"]
            if from_s <= decision["t_s"] < until_s
            for change in decision["changes"]
        ]


class Watched:
    """A command that runs a lab, with all its files in `folder`."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        self.lines: list[tuple[float, str]] = []
        self.seen: list[Seen] = []
        self._stdout, self._stderr, self._work = folder / "stdout", folder / "stderr", folder / "work"
        self._work.mkdir(parents=True)
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            self.process = subprocess.Popen(
                ["env", "--default-signal=INT", SLUICE, *arguments],  # a shell's background job ignores it
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "TMPDIR": str(self._work)},
                cwd=folder,
                start_new_session=True,
            )

    def kubeconfig(self) -> Path | None:
        """Return the kubeconfig of the run's cluster; None until the command has printed it."""
        told = re.search(r"is up: kubectl --kubeconfig (\S+)", self.stdout())
        return Path(told[1]) if told else None

    def stdout(self) -> str:
        return self._stdout.read_text()

    def stderr(self) -> str:
        return self._stderr.read_text()

    def wait(self, timeout_s: float) -> bool:
        """Return whether the command has ended, after at most `timeout_s`; read its new lines."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        whole = self.stdout().split("\n")[:-1]
        self.lines += [(time.monotonic(), line) for line in whole[len(self.lines) :]]
        return self.process.returncode is not None

    def wait_for(self, words: str) -> None:
        """Wait until a line on standard output has `words`."""
        deadline = time.monotonic() + _LIMIT_S
        while words not in self.stdout():
            assert not self.wait(0.1), self.stderr()
            assert time.monotonic() < deadline, self.stderr()

    def watch(self, once_scaled: Callable[[Path], None], also: Callable[[Seen, Path], None] | None = None) -> None:
        """Observe the cluster until the command ends; call `once_scaled` with the kubeconfig after the first change.

        `also` is called with every observation.
        """
        deadline = time.monotonic() + _LIMIT_S
        while (kubeconfig := self.kubeconfig()) is None:
            assert not self.wait(_POLL_S), self.stderr()
            assert time.monotonic() < deadline, self.stderr()
        scaled = False
        with config.new_client_from_config(str(kubeconfig)) as api:
            while not self.wait(_POLL_S):
                assert time.monotonic() < deadline, self.stderr()
                with contextlib.suppress(HTTPError, client.ApiException):  # the cluster is starting or stopping
                    self.seen.append(look(api))
                    if also is not None:
                        also(self.seen[-1], kubeconfig)
                if not scaled and self.seen and self.seen[-1].status.get("lastDecision"):
                    once_scaled(kubeconfig)
                    scaled = True

    def interrupt(self) -> int:
        """Send SIGINT, as Ctrl-C does; return the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(_END_S)

    def kill(self) -> None:
        """Kill the command, and with it its processes."""
        self.process.kill()
        self.process.wait()

    def remains(self) -> list[str]:
        """Return the temporary files that the run has left, after its processes have ended."""
        eventually(lambda: not processes_about(self._work))
        return list(map(str, self._work.iterdir()))


def eventually(look: Callable[[], T], within_s: float = _END_S) -> T:
    """Return the first true result of `look`."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s"
        time.sleep(0.1)
    return found


def processes_about(folder: Path) -> list[str]:
    """Return the command lines of processes with a path in `folder` among their arguments."""
    lines = (" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if f"{folder}/" in line]


def lab_run(
    scenario: Path,
    *flags: str,
    folder: Path,
    must_be_punctual: bool,
    once_scaled: Callable[[Path], None] = lambda kubeconfig: None,
    also: Callable[[Seen, Path], None] | None = None,
) -> LabRun:
    """Run a scenario to its end; run it again if the load was late and `must_be_punctual`."""
    for attempt in ("first", "second"):
        report = folder / f"{attempt}.json"
        watched = Watched(folder / attempt, "lab", "run", scenario, "--report", report, *flags)
        try:
            watched.watch(once_scaled, also)
        finally:
            watched.kill()
        assert report.is_file(), watched.stderr()
        run = LabRun(
            code=watched.process.returncode,
            stdout=watched.stdout(),
            lines=watched.lines,
            seen=watched.seen,
            report=json.loads(report.read_text()),
            operator_log=report.with_suffix(".operator.jsonl"),
            max_lag_s=max_lag_s(load_scenario(scenario, live=True)),
        )
        assert run.code == int(run.was_late), watched.stderr()
        assert not watched.remains()
        if not (run.was_late and must_be_punctual):
            return run
    lag_ms = run.summary["generator_lag_p99_s"] * 1000
    pytest.fail(f"this machine is too busy: the load was late twice, the second time by {lag_ms:.1f} ms (p99)")


def look(api: client.ApiClient) -> Seen:
    """Return the pipelines of a lab, its pools and its pods."""
    pipelines = client.CustomObjectsApi(api).list_cluster_custom_object(
        "sluice.dev", "v1alpha1", "speechpipelines", _request_timeout=_TIMEOUT_S
    )
    events = client.CoreV1Api(api).list_event_for_all_namespaces(_preload_content=False, _request_timeout=_TIMEOUT_S)
    pools = client.CustomObjectsApi(api).list_cluster_custom_object(
        "sluice.dev", "v1alpha1", "computepools", _request_timeout=_TIMEOUT_S
    )
    pods = client.CoreV1Api(api).list_pod_for_all_namespaces(_preload_content=False, _request_timeout=_TIMEOUT_S)
    told = json.loads(events.data)["items"]
    return Seen(
        at_s=time.monotonic(),
        pipelines={pipeline["metadata"]["name"]: pipeline for pipeline in pipelines["items"]},
        events=[event for event in told if event["involvedObject"]["kind"] == "SpeechPipeline"],
        pools={pool["metadata"]["name"]: pool for pool in pools["items"]},
        pool_events=[event for event in told if event["involvedObject"]["kind"] == "ComputePool"],
        pods=json.loads(pods.data)["items"],
    )
