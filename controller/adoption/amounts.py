"""Resource amounts of Kubernetes (`500m`, `2Gi`, `1e3`) as numbers, and what a pod requests. Pure."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from controller.adoption.inventory import Json
from controller.core.messages.phrases import number

_AMOUNT = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(n|u|m|k|[MGTPE]i?|Ki)?")
_UNITS = {"": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(10**3)}
_UNITS |= {unit: Decimal(10 ** (3 * power)) for power, unit in enumerate("MGTPE", start=2)}
_UNITS |= {f"{unit}i": Decimal(2 ** (10 * power)) for power, unit in enumerate("KMGTPE", start=1)}

Amounts = Mapping[str, float]
"""Amounts by resource: cores, bytes, or devices."""


def amount(text: object) -> float:
    """Return a resource amount as a number in its base unit; NaN where it is no amount."""
    found = _AMOUNT.fullmatch(str(text).strip())
    try:
        return float(Decimal(found[1]) * _UNITS[found[2] or ""]) if found else float("nan")
    except ArithmeticError:  # 1.2.3, or an exponent beyond those of decimals
        return float("nan")


def amounts(texts: Mapping[str, object] | None) -> dict[str, float]:
    """Return resource amounts as numbers, by resource."""
    return {resource: amount(text) for resource, text in (texts or {}).items()}


def requests_of(pod_spec: Json) -> dict[str, float]:
    """Return what a pod requests, by resource.

    It is the sum over its containers and sidecars, at least the largest init container, plus the overhead of its
    runtime class. A limit without a request counts as the request, as on the API server.
    """
    inits = pod_spec.get("initContainers") or []
    sidecars = [container for container in inits if container.get("restartPolicy") == "Always"]
    total = _sum(_requested(container) for container in [*(pod_spec.get("containers") or []), *sidecars])
    for container in inits:
        if container not in sidecars:
            for resource, value in _requested(container).items():
                total[resource] = max(total.get(resource, 0.0), value)
    return _sum([total, amounts(pod_spec.get("overhead"))])


def words(resource: str, value: float) -> str:
    """Return an amount as text: memory in GiB, others as a plain number."""
    if resource == "memory" or resource.startswith(("hugepages-", "ephemeral-storage")):
        return f"{number(value / 2**30)} GiB"
    return number(value)


def _requested(container: Json) -> dict[str, float]:
    resources = container.get("resources") or {}
    return {**amounts(resources.get("limits")), **amounts(resources.get("requests"))}


def _sum(parts: Iterable[Amounts]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for resource, value in part.items():
            total[resource] = total.get(resource, 0.0) + value
    return total
