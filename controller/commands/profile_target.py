"""The TARGET of `sluice profile` in a cluster: a Deployment or a Service, as the address of one of its pods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from controller.kube.gateway import Gateway

Json = Mapping[str, Any]
KINDS = ("deployment", "service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A server in the cluster: host and port, what it is called, how long its pod took to start (s, None: not known).

    `busy` says why its namespace has traffic that others pay for, None where nothing says so.
    """

    host: str
    port: int
    name: str
    startup_s: float | None
    busy: str | None


def found_target(target: str, namespace: str, port: int | None, kubeconfig: Path | None) -> Found:
    """Return the address of `target`, KIND/NAME, in `namespace`.

    Raises:
        click.ClickException: it does not exist, has no ready pod, or the cluster cannot be read.
    """
    from controller.kube.gateway import DEPLOYMENTS, PODS, ConfigurationError, Gateway, KubeError, NotFound, Resource

    kind, _, name = target.partition("/")
    services = Resource(api_version="v1", plural="services")
    try:
        with Gateway(kubeconfig) as gateway:
            try:
                found = gateway.get(DEPLOYMENTS if kind == "deployment" else services, namespace, name)
            except NotFound:
                raise click.ClickException(f"{kind} {name!r} does not exist in namespace {namespace!r}") from None
            selector = found["spec"].get("selector") or {}
            labels = selector.get("matchLabels", {}) if kind == "deployment" else selector
            if not labels:
                raise click.ClickException(f"{target}: has no selector by labels: no pod is known")
            words = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
            pods = [pod for pod in gateway.list_all(PODS, namespace, words).items if _ready(pod)]
            if not pods:
                raise click.ClickException(f"{target}: has no ready pod in namespace {namespace!r}")
            busy = _busy(gateway, namespace)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    except KubeError as error:
        raise click.ClickException(str(error)) from None
    pod = min(pods, key=lambda own: str(own["metadata"]["name"]))
    chosen = port or _port(pod) or 0
    if not chosen:
        raise click.ClickException(f"pod {pod['metadata']['name']}: declares no port: choose one with --target-port")
    return Found(
        host=pod["status"]["podIP"],
        port=chosen,
        name=f"pod {namespace}/{pod['metadata']['name']}",
        startup_s=startup_s(pod),
        busy=busy,
    )


def startup_s(pod: Json) -> float | None:
    """Return the seconds from the binding of a pod to a node until it was ready, None where that is not to be seen."""
    status = pod["status"]
    if any(own.get("restartCount", 0) for own in status.get("containerStatuses", [])):
        return None
    ready = [own for own in status.get("conditions", []) if own.get("type") == "Ready" and own.get("status") == "True"]
    scheduled = [own for own in status.get("conditions", []) if own.get("type") == "PodScheduled"]
    if not ready or not scheduled:
        return None
    taken_s = _time_s(ready[0]["lastTransitionTime"]) - _time_s(scheduled[0]["lastTransitionTime"])
    return taken_s if taken_s >= 0 else None


def _busy(gateway: "Gateway", namespace: str) -> str | None:
    """Return which SpeechPipelines live in `namespace`; None without any, or without the resource."""
    from controller.kube.gateway import PIPELINES, KubeError

    try:
        names = [str(own["metadata"]["name"]) for own in gateway.list_all(PIPELINES, namespace).items]
    except KubeError:
        return None
    return f"namespace {namespace} serves SpeechPipeline {', '.join(sorted(names))}" if names else None


def _ready(pod: Json) -> bool:
    conditions: Sequence[Json] = pod["status"].get("conditions", [])
    ready = any(own.get("type") == "Ready" and own.get("status") == "True" for own in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"] and bool(pod["status"].get("podIP"))


def _port(pod: Json) -> int | None:
    ports = [port for container in pod["spec"].get("containers", []) for port in container.get("ports", [])]
    return int(ports[0]["containerPort"]) if ports else None


def _time_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
