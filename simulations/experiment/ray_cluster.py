"""The executor on a Ray cluster: each run or bound is a task. Needs the extra `ray`.

The nodes need the same packages as this process, and no files: the load is made here and sent to them.
"""

import logging
import os
import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from simulations.experiment.experiment import Answer, Request, answer, load_key, longest_first, schedules_of
from simulations.experiment.provenance import versions
from simulations.scenario.scenario import Scenario
from simulations.scenario.schedule import Schedule

ADDRESS = "RAY_ADDRESS"
"""The environment variable that has the address of the cluster, as for Ray's own commands."""
CONNECT_S = 10.0
INSTALL = "pip install 'sluice-operator[ray]'"


class RayFailed(RuntimeError):
    """Ray is not installed, not reachable, or a task failed; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """The executor on the Ray cluster at `address`, one processor for each run; `auto` is the one of this machine."""

    address: str

    def answers(
        self, scenario: Scenario, requests: Sequence[Request], report: Callable[[Answer], object]
    ) -> Sequence[Answer]:
        """Return the answers in the order of `requests`; call `report` in this process with each as it is made.

        Raises:
            RayFailed: the cluster is not reachable, has other versions, or a task failed.
        """
        import ray
        from ray.exceptions import RayError

        try:
            self._connect()
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise RayFailed(
                f"no Ray cluster at {self.address} ({_first_line(error)}); start one with `ray start --head`, or set "
                f"{ADDRESS}"
            ) from None
        try:
            return _answers(ray, scenario, requests, report)
        except RayError as error:
            raise RayFailed(f"a run failed on the Ray cluster: {_first_line(getattr(error, 'cause', error))}") from None
        finally:
            ray.shutdown()

    def _connect(self) -> None:
        """Raise `OSError` if nothing listens at the address: Ray itself would try for many minutes."""
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():
            with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S):
                pass


def ray_cluster(environment: Mapping[str, str] = os.environ) -> RayCluster:
    """Return the executor on the cluster that `RAY_ADDRESS` names, or else on the one of this machine.

    Raises:
        RayFailed: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise RayFailed(f"Ray is not installed: {INSTALL}")
    return RayCluster(address=environment.get(ADDRESS) or "auto")


def _answers(
    ray: Any, scenario: Scenario, requests: Sequence[Request], report: Callable[[Answer], object]
) -> Sequence[Answer]:
    task = ray.remote(num_cpus=1)(_in_task)
    shared = ray.put(scenario)
    loads: dict[tuple[str | None, int], Any] = {}
    waiting: dict[Any, int] = {}
    for index in longest_first(requests):
        request = requests[index]
        key = load_key(scenario, request)
        if key not in loads:
            loads[key] = ray.put(schedules_of(scenario, request))
        waiting[task.remote(shared, request, loads[key], versions())] = index
    found: dict[int, Answer] = {}
    while waiting:
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        result: Answer = ray.get(done)
        found[waiting.pop(done)] = result
        report(result)
    return [found[index] for index in range(len(requests))]


def _in_task(
    scenario: Scenario, request: Request, schedules: Mapping[str, Schedule], expected: Mapping[str, str]
) -> Answer:
    """Answer a request on a node of the cluster, whose versions must be those `expected`."""
    if (here := versions()) != expected:
        other = sorted(name for name in {*here, *expected} if here.get(name) != expected.get(name))
        differences = ", ".join(f"{name} {here.get(name)} instead of {expected.get(name)}" for name in other)
        raise RayFailed(f"{platform.node()} has {differences}: results would differ; install the same packages there")
    own = {  # Ray's arrays are read-only, and compiled code takes others
        key: replace(each, start_s=each.start_s.copy(), end_s=each.end_s.copy()) for key, each in schedules.items()
    }
    return answer(scenario, request, own)


def _first_line(error: object) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
