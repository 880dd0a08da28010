"""What keeps a pod from nodes of its pool even while they are empty: volumes, gates, affinity, labels.

A pod that waits because of such a constraint says nothing of the pool. Pure functions of API objects; see PodSpec in
the Kubernetes API reference.
"""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

_HOSTNAME = "kubernetes.io/hostname"
_OF_SOME_NODES = frozenset(
    {
        _HOSTNAME,
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/zone",
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/instance-type",
        "karpenter.sh/capacity-type",
    }
)
"""Labels that the next node of a pool may have otherwise, even if all present ones have them alike."""
_MOST_CHARACTERS = 100


def kept_constraints(spec: Json) -> Json:
    """Return what of a pod's `spec` limits its nodes: `labels` (each with the values it may have) and `words`."""
    labels: dict[str, list[str]] = {key: [value] for key, value in _mapping(spec.get("nodeSelector")).items()}
    words: list[str] = []
    if scheduler := spec.get("schedulerName"):
        words += [f"schedulerName {scheduler}"] if scheduler != "default-scheduler" else []
    words += [f"scheduling gate {gate.get('name')}" for gate in _objects(spec.get("schedulingGates"))]
    words += [f"resource claim {claim.get('name')}" for claim in _objects(spec.get("resourceClaims"))]
    words += [
        f"volume {volume.get('name')}"
        for volume in _objects(spec.get("volumes"))
        if "persistentVolumeClaim" in volume or "ephemeral" in volume
    ]
    words += [
        f"topology spread over {spread.get('topologyKey')}"
        for spread in _objects(spec.get("topologySpreadConstraints"))
        if spread.get("whenUnsatisfiable") == "DoNotSchedule" and spread.get("topologyKey") != _HOSTNAME
    ]
    affinity = _mapping(spec.get("affinity"))
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = _objects(_mapping(_mapping(affinity.get("nodeAffinity")).get(required)).get("nodeSelectorTerms"))
    one = terms[0] if len(terms) == 1 and not terms[0].get("matchFields") else {}
    expressions = _objects(one.get("matchExpressions"))
    if terms and (not expressions or any(each.get("operator") != "In" for each in expressions)):
        words.append("node affinity")
    else:
        labels |= {str(each.get("key")): list(each.get("values") or ()) for each in expressions}
    if _mapping(affinity.get("podAffinity")).get(required):
        words.append("pod affinity")
    apart = _objects(_mapping(affinity.get("podAntiAffinity")).get(required))
    if any(term.get("topologyKey") != _HOSTNAME for term in apart):  # an empty node has no pod to be apart from
        words.append("pod anti-affinity")
    return {
        **({"labels": labels} if labels else {}),
        **({"words": [str(each)[:_MOST_CHARACTERS] for each in words]} if words else {}),
    }


def constraint(kept: Json, selector: Mapping[str, str], common: Mapping[str, str]) -> str:
    """Return what keeps a pod from nodes of a pool with `selector`, "" where nothing does.

    `common` are the labels that all present nodes of the pool have alike.
    """
    for word in kept.get("words") or ():
        return str(word)
    for key, values in (kept.get("labels") or {}).items():
        has = selector.get(key, None if key in _OF_SOME_NODES else common.get(key))
        if has is None or has not in values:
            return f"node label {key}"[:_MOST_CHARACTERS]
    return ""


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
