"""Sluice against Ray's own autoscaler on real Ray Serve: the same load, what it costs and what its users wait.

`python -m simulations.speech.ray_serve.race`, in namespaces for network and processes of its own, as `make
race-ray-serve` runs it. Each policy gets a cluster of its own, one after the other.
"""

import argparse
import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from controller.ray.applications import ServeFailure
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.host.binaries import Binaries, ensure
from simulations.speech.audio.spoken import SAMPLE_RATE, Conversation
from simulations.speech.audio.synthesis import Request, conversations, pink_noise
from simulations.speech.live.load import heard
from simulations.speech.ray_serve.head import ADDRESS, DASHBOARD, HTTP_PORT, Config, RayHead
from simulations.speech.serving.client import Speaker, Speech, StreamResult

APPLICATION = "captions"
NAMESPACE = "speech"
SLUICE = "sluice"
DEPLOYMENTS = ("TranscriptionServer", "PyannoteVAD", "FasterWhisperASR")
MANIFESTS = files("simulations.speech.ray_serve") / "manifests.yaml"
INTERVAL_S = 5.0
CHUNK_S = 0.48
WINDOW_S = 15.0
"""Users' windows: the SLA is kept in one if the 95th percentile of the latencies in it is within it."""
LOAD: tuple[tuple[float, int], ...] = ((0.0, 6), (60.0, 30), (180.0, 6), (300.0, 6))
"""Streams from a time on, in seconds; the last time is the end."""
SNR_DB = 30.0
_SHARE = 0.03
_SAMPLE_S = 0.5

AUTOSCALERS: Mapping[str, Mapping[str, Any] | None] = {
    SLUICE: None,
    "ray, default": {"min_replicas": 1, "max_replicas": 8},
    "ray, tuned": {
        "min_replicas": 1,
        "max_replicas": 8,
        "target_ongoing_requests": 1,
        "upscale_delay_s": 5,
        "downscale_delay_s": 60,
    },
}
"""The settings of Ray's autoscaler for recognition by the policy; None: Sluice scales."""


def serve_config(autoscaling: Mapping[str, Any] | None) -> Config:
    """Return the configuration of the application; recognition has `autoscaling`, or is scaled from outside (None)."""

    def deployment(name: str, **own: Any) -> dict[str, Any]:
        return {"name": name, "graceful_shutdown_timeout_s": 10, **own}

    limited = {"user_config": {"share": _SHARE}}
    scaled = {"num_replicas": 1} if autoscaling is None else {"autoscaling_config": dict(autoscaling)}
    return {
        "http_options": {"host": ADDRESS, "port": HTTP_PORT},
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": "simulations.speech.ray_serve.application:captions",
                "args": {"variant": "small"},
                "external_scaler_enabled": autoscaling is None,
                "deployments": [
                    deployment(
                        "TranscriptionServer",
                        num_replicas=1,
                        max_ongoing_requests=200,
                        ray_actor_options={"num_cpus": 1},
                    ),
                    deployment(
                        "PyannoteVAD",
                        num_replicas=1,
                        max_ongoing_requests=16,
                        ray_actor_options={"num_cpus": 1},
                        user_config={"share": 0.2},
                    ),
                    deployment(
                        "FasterWhisperASR",
                        max_ongoing_requests=2,
                        ray_actor_options={"num_cpus": 1},
                        **limited,
                        **scaled,
                    ),
                ],
            }
        ],
    }


@dataclass(slots=True)
class Replicas:
    """How many replicas the deployments had, as seen every half second: pairs of a time and the counts by name."""

    seen: list[tuple[float, Mapping[str, int]]] = field(default_factory=list)
    targets: list[Mapping[str, int]] = field(default_factory=list)

    def seconds(self, deployment: str) -> float:
        """Return the replica-seconds of a deployment: those that start and stop occupy their place too."""
        return sum((after - at) * counts.get(deployment, 0) for (at, counts), (after, _) in pairwise(self.seen))

    def changes(self) -> int:
        """Return how often the number of replicas that a deployment is to have was changed."""
        return sum(
            before.get(name) != after.get(name) for before, after in pairwise(self.targets) for name in DEPLOYMENTS
        )

    def most(self, deployment: str) -> int:
        """Return the most replicas that a deployment had."""
        return max((counts.get(deployment, 0) for _, counts in self.seen), default=0)


@contextmanager
def watched(head: RayHead) -> Iterator[Replicas]:
    """Count the replicas while the context is entered."""
    found, over = Replicas(), threading.Event()

    def watch() -> None:
        while not over.wait(_SAMPLE_S):
            try:
                own = head.api.read(DASHBOARD).deployments.get(APPLICATION, {})
            except ServeFailure:
                continue  # what is not seen lasts as before: the time between samples counts with the one before
            found.seen.append((time.monotonic(), {name: len(each.replicas) for name, each in own.items()}))
            found.targets.append({name: each.target for name, each in own.items()})

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def streams_of(load: Sequence[tuple[float, int]], seed: int, spoken: Sequence[Conversation]) -> list[Speech]:
    """Return the streams of a load: the last ones that began end first, and none begins together with another."""
    chance = np.random.default_rng(seed)
    open_s: list[float] = []
    found: list[Speech] = []

    def add(begin_s: float, end_s: float) -> None:
        conversation = spoken[int(chance.integers(len(spoken)))]
        begin = float(chance.uniform(0, conversation.duration_s))
        found.append(Speech(number=len(found), conversation=conversation, start_s=begin_s, end_s=end_s, begin_s=begin))

    for at_s, count in load:
        while len(open_s) < count:
            open_s.append(at_s + float(chance.uniform(0, 5)))
        while len(open_s) > count:
            add(open_s.pop(), at_s)
    for begin_s in open_s:
        add(begin_s, load[-1][0])
    return found


async def speak(speeches: Sequence[Speech]) -> list[StreamResult]:
    """Speak all streams in real time, and return what became of them."""
    noise = pink_noise(np.random.default_rng(1), 30 * SAMPLE_RATE)
    begin_s = time.monotonic() + 0.5
    speakers = [
        Speaker(
            f"ws://{ADDRESS}:{HTTP_PORT}",
            speech,
            begin_s=begin_s,
            chunk_s=CHUNK_S,
            noise=noise,
            snr_db=lambda _: SNR_DB,
        )
        for speech in speeches
    ]
    return list(await asyncio.gather(*(speaker.speak() for speaker in speakers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run of a policy: its cost in USD, and what users had of it."""

    policy: str
    cost: float
    windows: int
    windows_met: int
    p50_s: float
    p95_s: float
    p99_s: float
    wer: float
    chunks: Mapping[str, int]
    streams_lost: int
    changes: int
    most: int
    lag_p99_s: float

    @property
    def met(self) -> float:
        """Return the share of windows within the SLA."""
        return self.windows_met / max(1, self.windows)


def windows(results: Sequence[StreamResult], sla_s: float) -> tuple[int, int]:
    """Return how many windows of `WINDOW_S` there were with words, and how many were within the SLA."""
    latencies: dict[int, list[float]] = {}
    for result in results:
        for due_s, latency_s in result.latencies:
            latencies.setdefault(int(due_s // WINDOW_S), []).append(latency_s)
    return len(latencies), sum(float(np.percentile(own, 95)) <= sla_s for own in latencies.values())


@contextmanager
def operated(folder: Path, binaries: Binaries, head: RayHead, manifests: str) -> Iterator[LabCluster]:
    """Let the operator scale the application by `manifests` while the context is entered."""
    targets = {NAMESPACE: head.metrics_targets()}
    with LabCluster(folder / "lab", binaries, owned=targets) as cluster:
        with cluster.admin() as api:
            from kubernetes import client

            client.CoreV1Api(api).create_namespace({"metadata": {"name": NAMESPACE}})
        cluster.apply(yaml.safe_load_all(manifests), (), ())
        cluster.start_operator(interval_s=INTERVAL_S, flags={"ray-hosts": DASHBOARD.removeprefix("http://")})
        yield cluster


def run(policy: str, load: Sequence[tuple[float, int]], seed: int, folder: Path, binaries: Binaries) -> Result:
    """Run one policy on a cluster of its own."""
    manifests = MANIFESTS.read_text()
    documents = {each["kind"]: each for each in yaml.safe_load_all(manifests)}
    sla_s = float(documents["SpeechPipeline"]["spec"]["sla"]["latency"].removesuffix("ms")) / 1000
    price = float(documents["ComputePool"]["spec"]["price"]["perHour"])
    spoken = list(conversations([Request(seed=seed + number, duration_s=60, snr_db=60) for number in range(8)]))
    with ExitStack() as parts:
        head = parts.enter_context(RayHead(folder / "ray", cpus=12))
        head.deploy(serve_config(AUTOSCALERS[policy]))
        if policy == SLUICE:
            parts.enter_context(operated(folder, binaries, head, manifests))
        with watched(head) as replicas:
            speeches = streams_of(load, seed, spoken)
            results = asyncio.run(speak(speeches))
        said_s = sum(speech.end_s - speech.start_s for speech in speeches)
        found, (count, met) = heard(results, said_s), windows(results, sla_s)
        lags_s = [lag_s for result in results for lag_s in result.lags_s]
        return Result(
            policy=policy,
            cost=sum(map(replicas.seconds, DEPLOYMENTS)) / 3600 * price,
            windows=count,
            windows_met=met,
            p50_s=found.p50_s or 0.0,
            p95_s=found.p95_s or 0.0,
            p99_s=found.p99_s or 0.0,
            wer=found.total.rate or 0.0,
            chunks=found.outcomes,
            streams_lost=found.streams_lost,
            changes=replicas.changes(),
            most=replicas.most("FasterWhisperASR"),
            lag_p99_s=float(np.percentile(lags_s, 99)),
        )


def table(results: Sequence[Result]) -> str:
    """Return the results as a Markdown table."""
    head = "| policy | cost | windows within the SLA | p50 / p95 / p99 | word errors | most ASR replicas | changes |"
    rows = [
        f"| {own.policy} | ${own.cost:.4f} | {own.windows_met} of {own.windows} ({own.met:.0%}) | "
        f"{own.p50_s:.2f} / {own.p95_s:.2f} / {own.p99_s:.2f} s | {own.wer:.1%} | {own.most} | {own.changes} |"
        for own in results
    ]
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows])


def main() -> None:
    """Run the race as a program."""
    parser = argparse.ArgumentParser(description="Race Sluice against Ray's own autoscaler on real Ray Serve.")
    parser.add_argument("--policy", choices=AUTOSCALERS, action="append", help="default: all of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep what was logged here")
    given = parser.parse_args()
    binaries = ensure(print)
    results = []
    with tempfile.TemporaryDirectory(prefix="rs-") as scratch:
        for policy in given.policy or AUTOSCALERS:
            place = (given.folder or Path(scratch)) / policy.replace(", ", "-")
            results.append(run(policy, LOAD, given.seed, place, binaries))
            own = results[-1]
            print(
                f"{policy}: chunks {json.dumps(own.chunks)}, streams lost {own.streams_lost}, "
                f"chunks late by {own.lag_p99_s * 1000:.0f} ms (p99)",
                flush=True,
            )
    print(table(results))


if __name__ == "__main__":
    main()
