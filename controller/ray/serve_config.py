"""The replicas of deployments in the `serveConfigV2` of a RayService: read, and changed in its text. Pure.

The field is a text with YAML that a person wrote, so only the number changes: comments and order stay.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

NUMBER = "num_replicas"
AUTO = "auto"
_DEFAULT = 1
_CLUSTER, _GROUP, _NODE_TYPE = "ray.io/cluster", "ray.io/group", "ray.io/node-type"
_AUTO_MOST = 100
_GRACE_S = 20.0
_MOST_CHARACTERS = 200_000
"""A longer text is refused: reading one of a megabyte takes longer than a cycle."""


class UnusableConfig(ValueError):
    """The text is no configuration of Serve, or has no such deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """A deployment in the text: how many replicas it is to have, None where Ray's own autoscaler sets it."""

    replicas: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A deployment that the text lists: its bounds under Ray's own autoscaler, or the number that is set.

    `actor` is what a replica needs of a Ray node: `CPU`, `GPU` and custom resources. `grace_s` is the time that its
    requests get when it stops. The defaults are Ray's.
    """

    application: str
    name: str
    replicas: int | None
    least: int = _DEFAULT
    most: int = _DEFAULT
    actor: Mapping[str, float]
    grace_s: float


def config_of(service: Mapping[str, Any]) -> str:
    """Return the `serveConfigV2` of a RayService, empty without one."""
    text = (service.get("spec") or {}).get("serveConfigV2")
    return text if isinstance(text, str) else ""


def worker_labels(service: Mapping[str, Any], group: str) -> Mapping[str, str]:
    """Return the labels of the pods of a RayService's worker group, "" for all; none before it has a cluster."""
    active = (service.get("status") or {}).get("activeServiceStatus") or {}
    cluster = active.get("rayClusterName") or ""
    if not cluster:
        return {}
    return {_CLUSTER: cluster, **({_NODE_TYPE: "worker", _GROUP: group} if group else {})}


def listed(text: str) -> tuple[tuple[Listed, ...], tuple[str, ...]]:
    """Return the deployments that the text lists, and the applications of which it lists none.

    Raises:
        UnusableConfig: the text is no configuration of Serve.
    """
    if len(text) > _MOST_CHARACTERS:
        raise UnusableConfig(_too_long(text))
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UnusableConfig(_not_yaml(error)) from None
    found, without = [], []
    for application in _mappings(document, "applications"):
        own = [_listed(str(application.get("name")), each) for each in _mappings(application, "deployments")]
        found += own
        without += [] if own else [str(application.get("name"))]
    return tuple(found), tuple(without)


def _mappings(document: Any, key: str) -> Iterator[dict[str, Any]]:
    entries = document.get(key) if isinstance(document, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name"):
            yield entry


def _listed(application: str, entry: Mapping[str, Any]) -> Listed:
    number, scaling = entry.get(NUMBER, _DEFAULT), entry.get("autoscaling_config")
    options = entry.get("ray_actor_options")
    options = options if isinstance(options, dict) else {}
    custom = options.get("resources")
    wanted = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0)}
    wanted |= custom if isinstance(custom, dict) else {}
    auto = number == AUTO or scaling is not None
    bounds = scaling if isinstance(scaling, dict) else {}
    return Listed(
        application=application,
        name=str(entry["name"]),
        replicas=None if auto else int(_amount(number, _DEFAULT)),
        least=int(_amount(bounds.get("min_replicas"), _DEFAULT)),
        most=int(_amount(bounds.get("max_replicas"), _AUTO_MOST if number == AUTO else _DEFAULT)),
        actor={name: amount for name, value in wanted.items() if (amount := _amount(value, 0.0)) > 0},
        grace_s=_amount(entry.get("graceful_shutdown_timeout_s"), _GRACE_S),
    )


def _amount(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1e9 else default


@lru_cache(maxsize=1024)  # each cycle reads the same few
def configured(text: str, application: str, deployment: str) -> Configured:
    """Return what the text says of a deployment; without a number Ray starts one replica.

    Raises:
        UnusableConfig: the text has no such deployment.
    """
    entry = _entry(text, application, deployment)
    number = _value(entry, NUMBER)
    if _value(entry, "autoscaling_config") is not None or (number is not None and number.value == AUTO):
        return Configured(replicas=None)
    if number is None:
        return Configured(replicas=_DEFAULT)
    if not isinstance(number, yaml.ScalarNode) or not number.value.isascii() or not number.value.isdecimal():
        raise UnusableConfig(f"deployment {deployment}: {NUMBER} must be a number of replicas or {AUTO}")
    return Configured(replicas=int(number.value))


def with_replicas(text: str, application: str, deployment: str, replicas: int) -> str:
    """Return the text with another number of replicas for a deployment.

    Raises:
        UnusableConfig: the text has no such deployment, or Ray's own autoscaler sets its replicas.
    """
    if configured(text, application, deployment).replicas is None:
        raise UnusableConfig(f"deployment {deployment}: Ray's own autoscaler sets its replicas")
    entry = _entry(text, application, deployment)
    number = _value(entry, NUMBER)
    if number is not None:
        return f"{text[: number.start_mark.index]}{replicas}{text[number.end_mark.index :]}"
    name = _value(entry, "name")
    assert name is not None, "it was found by its name"
    at = name.end_mark.index
    if entry.flow_style:
        return f"{text[:at]}, {NUMBER}: {replicas}{text[at:]}"
    key = next(key for key, value in entry.value if value is name)
    line_end = text.find("\n", at)
    line_end = len(text) if line_end < 0 else line_end
    return f"{text[:line_end]}\n{' ' * key.start_mark.column}{NUMBER}: {replicas}{text[line_end:]}"


def _entry(text: str, application: str, deployment: str) -> yaml.MappingNode:
    if len(text) > _MOST_CHARACTERS:
        raise UnusableConfig(_too_long(text))
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise UnusableConfig(_not_yaml(error)) from None
    own = _named(_value(root, "applications"), application)
    if own is None:
        raise UnusableConfig(f"serveConfigV2: has no application {application}")
    entry = _named(_value(own, "deployments"), deployment)
    if entry is None:
        raise UnusableConfig(
            f"serveConfigV2: application {application} lists no deployment {deployment}: add it there, "
            f"with its {NUMBER}"
        )
    return entry


def _too_long(text: str) -> str:
    return f"serveConfigV2: {len(text):,} characters, must be at most {_MOST_CHARACTERS:,}"


def _not_yaml(error: yaml.YAMLError) -> str:
    return f"serveConfigV2: not YAML: {' '.join(str(error).split())}"


def _named(nodes: yaml.Node | None, name: str) -> yaml.MappingNode | None:
    if not isinstance(nodes, yaml.SequenceNode):
        return None
    found = (node for node in nodes.value if isinstance(node, yaml.MappingNode))
    return next((node for node in found if (own := _value(node, "name")) is not None and own.value == name), None)


def _value(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)
