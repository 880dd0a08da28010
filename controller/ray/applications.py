"""The answer of Ray Serve's REST API about its applications, as values. Pure.

`GET /api/serve/applications/` of Ray 2.x (`ServeInstanceDetails`). After a deployment was scaled its status stays
HEALTHY while replicas start, so only the states of the replicas count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

RUNNING = frozenset({"RUNNING", "PENDING_MIGRATION"})
"""The states of replicas that serve; one that is to be migrated serves until another has taken its place."""
STOPPING = "STOPPING"
UPDATING = frozenset({"UPDATING"})
"""The statuses of deployments whose replicas are being replaced."""


class ServeFailure(Exception):
    """Ray Serve did not answer, or its answer cannot be used; the message says why."""


class ServeRefusal(ServeFailure):
    """Ray Serve refuses a request, with `status`."""

    def __init__(self, message: str, status: int) -> None:
        """`status` is that of HTTP."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeReplica:
    """A replica of a deployment: it was created at `since_s`, in epoch seconds of Ray's head.

    `address` is the IP address of its Ray node, None while it has none: no node has the resources that it asks for.
    """

    name: str
    state: str
    since_s: float
    address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeState:
    """A deployment: the replicas that it is to have, and those that it has.

    `autoscaled` says that Ray's own autoscaler sets the first number. `grace_s` is how long a replica that stops has
    for its requests, WebSockets included: graceful_shutdown_timeout_s. `message` is what Ray says is wrong with it.
    """

    target: int
    replicas: tuple[ServeReplica, ...]
    autoscaled: bool
    grace_s: float
    updating: bool = False
    message: str = ""


class _Answer(BaseModel):
    """A part of the answer; fields that are not read are ignored, since each version of Ray adds some."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Replica(_Answer):
    replica_id: str
    state: str
    start_time_s: float = 0.0
    node_id: str | None = None
    node_ip: str | None = None


class _Config(_Answer):
    autoscaling_config: dict[str, Any] | None = None
    graceful_shutdown_timeout_s: float = 20.0


class _Deployment(_Answer):
    status: str = ""
    message: str = ""
    target_num_replicas: int = Field(ge=0)
    deployment_config: _Config = _Config()
    replicas: tuple[_Replica, ...] = ()

    def state(self) -> ServeState:
        return ServeState(
            target=self.target_num_replicas,
            replicas=tuple(
                ServeReplica(
                    name=each.replica_id,
                    state=each.state,
                    since_s=each.start_time_s,
                    address=None if each.node_id is None else each.node_ip or "",
                )
                for each in self.replicas
            ),
            autoscaled=self.deployment_config.autoscaling_config is not None,
            grace_s=self.deployment_config.graceful_shutdown_timeout_s,
            updating=self.status in UPDATING,
            message=self.message,
        )


class _Application(_Answer):
    status: str = ""
    message: str = ""
    deployments: dict[str, _Deployment] = Field(default_factory=dict)


class _Applications(_Answer):
    applications: dict[str, _Application]


_APPLICATIONS = TypeAdapter(_Applications)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applications:
    """The applications of one Ray cluster, each with its status, Ray's words about it, and its deployments."""

    deployments: Mapping[str, Mapping[str, ServeState]]
    words: Mapping[str, str]

    def deployment(self, application: str, name: str) -> ServeState:
        """Return a deployment.

        Raises:
            ServeRefusal: there is none, with status 404.
        """
        found = self.deployments.get(application)
        if found is None:
            known = ", ".join(sorted(self.deployments)) or "none"
            raise ServeRefusal(f"application {application}: not deployed; there are: {known}", 404)
        if name not in found:
            words = f": {self.words[application]}" if self.words[application] else ""
            known = ", ".join(sorted(found)) or "none"
            raise ServeRefusal(f"application {application} has no deployment {name}; it has: {known}{words}", 404)
        return found[name]


def read_applications(text: bytes) -> Applications:
    """Return the applications of an answer.

    Raises:
        ServeFailure: it is none.
    """
    try:
        answer = _APPLICATIONS.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the answer"
        raise ServeFailure(f"not an answer of Ray Serve: {place}: {first['msg']}") from None
    return Applications(
        deployments={
            name: {each: deployment.state() for each, deployment in own.deployments.items()}
            for name, own in answer.applications.items()
        },
        words={
            name: ": ".join(filter(None, (own.status, own.message))) if own.status != "RUNNING" else ""
            for name, own in answer.applications.items()
        },
    )
