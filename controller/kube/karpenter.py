"""Reads what is known of pods and nodes to come: NodePools and NodeClaims of Karpenter, and Events.

The names, labels, conditions and Events are those of Karpenter's API karpenter.sh/v1. A NodeClaim has the conditions
`Launched` and `Registered`. If the provider has no capacity, Karpenter writes the Event `InsufficientCapacityError`
about the NodeClaim and deletes it. The Event `Nominated` about a pod names the NodeClaim that it is to run on. The
cluster autoscaler writes `TriggeredScaleUp` about the pod. If it cannot scale a group, it writes `FailedToScaleUpGroup`
or `ScaleUpFailed` about its status, a ConfigMap in kube-system.
"""

import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median

from controller.adoption.amounts import Amounts, amounts
from controller.core.state.provider_errors import ProviderError, classify
from controller.core.state.snapshot import ExpectedNode, LaunchFailure, NodePoolProblem, NodePoolState
from controller.core.state.spec import Target
from controller.kube.gateway import EVENTS, NODE_CLAIMS, NODE_POOLS, Gateway, Json, KubeError, NotFound, Resource
from controller.kube.readable import left_out, readable
from controller.kube.workloads import condition, seconds

_LOG = logging.getLogger(__name__)
_LABEL = "karpenter.sh/nodepool"
_EXPECTS = ("Nominated", "TriggeredScaleUp")
_NO_CAPACITY = "InsufficientCapacityError"
_MOST_PAGES = 4
"""Of the Events of one kind in one namespace, only the first pages are read: their number is whatever others write."""
_CLUSTER_EVENTS = "default"
"""The namespace of Events about objects that are in no namespace."""
_NO_SCALE_UP = ("FailedToScaleUpGroup", "ScaleUpFailed")
_AUTOSCALER_EVENTS = "kube-system"
"""The namespace of the cluster autoscaler's status, which its Events about groups are about."""
_EARLIER_S = 60.0
"""The first failure may be earlier than the cycle that saw it: a controller tries again ever more rarely."""
_LONGEST = 1024  # characters of a message, which its writer may make as long as an object can be
_CLAIM = re.compile(r"nodeclaim/(\S+?)(,|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The NodePools and NodeClaims of the cluster; `problem` says why they are not known, or not up to date."""

    node_pools: Mapping[str, Json] = field(default_factory=dict)
    claims: tuple[Json, ...] = ()
    problem: NodePoolProblem | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCreation:
    """An Event `FailedCreate`: the ReplicaSet, StatefulSet or other `owner` could not create a pod."""

    owner: str
    at_s: float
    message: str


class Karpenter:
    """Reads NodePools and NodeClaims in each cycle, and Events while pods are pending or missing."""

    def __init__(self, gateway: Gateway, namespaces: tuple[str, ...] = ()) -> None:
        """`namespaces` are those in which Events may be listed; empty: all."""
        self._gateway = gateway
        self._namespaces = namespaces
        self._read = _Read()
        self._events: dict[tuple[str, str], Sequence[Json]] = {}
        self._problems: dict[str, str] = {}

    def refresh(self, watched: Callable[[Resource], Iterable[Json]]) -> None:
        """Take the present NodePools and NodeClaims; if they are not known at present, the last known ones stay."""
        try:
            pools, claims = watched(NODE_POOLS), watched(NODE_CLAIMS)
        except NotFound as error:
            self._read = _Read(problem=NodePoolProblem.NOT_FOUND, detail=f"Karpenter is not installed: {error}")
        except KubeError as error:
            self._read = replace(self._read, problem=NodePoolProblem.UNREADABLE, detail=str(error))
        else:
            self._read = _Read(node_pools={pool["metadata"]["name"]: pool for pool in pools}, claims=tuple(claims))

    def state(
        self,
        node_pool: str,
        selector: Mapping[str, str],
        nodes: Iterable[Json],
        failures: Mapping[str, LaunchFailure],
    ) -> NodePoolState:
        """Return the state of the NodePool of this name for a pool of the nodes that `selector` matches.

        `failures` are failed launches by the NodeClaim.
        """
        found = self._read.node_pools.get(node_pool)
        if found is None:
            problem = self._read.problem or NodePoolProblem.NOT_FOUND
            return NodePoolState(problem=problem, detail=self._read.detail or f"there is no NodePool {node_pool}")
        try:
            claims = [claim for claim in self._read.claims if _made_by(claim, node_pool)]
            state = node_pool_state(found, selector, claims, nodes, tuple(failures.values()))
        except Exception as error:  # noqa: BLE001 -- whatever is in these objects concerns this pool alone
            left_out("NodePool", node_pool, error)
            detail = f"NodePool {node_pool} or one of its NodeClaims cannot be read: {type(error).__name__}: {error}"
            return NodePoolState(problem=NodePoolProblem.UNREADABLE, detail=detail)
        if self._read.problem is None:
            return state
        return replace(state, problem=self._read.problem, detail=self._read.detail)

    def instance_ids(self, node_pool: str | None, selector: Mapping[str, str], nodes: Iterable[Json]) -> frozenset[str]:
        """Return the IDs of the cloud's instances of a pool: its nodes, and the launched NodeClaims of `node_pool`.

        A provider ID is such as `aws:///us-east-1a/i-0123456789abcdef0`.
        """
        of_nodes = (
            (node.get("spec") or {}).get("providerID")
            for node in nodes
            if selector.items() <= (node["metadata"].get("labels") or {}).items()
        )
        of_claims = (
            (claim.get("status") or {}).get("providerID")
            for claim in self._read.claims
            if node_pool is not None and _made_by(claim, node_pool) and not _contradicts(claim, selector)
        )
        return frozenset(str(found).rpartition("/")[2] for found in (*of_nodes, *of_claims) if found)

    def launch_failures(self) -> Mapping[str, LaunchFailure]:
        """Return the launches that failed for want of capacity, by the name of the NodeClaim.

        They are not known to an operator of some namespaces without `default`.
        """
        if self._namespaces and _CLUSTER_EVENTS not in self._namespaces:
            return {}
        found = self._listed(_CLUSTER_EVENTS, f"involvedObject.kind=NodeClaim,reason={_NO_CAPACITY}")
        failures = readable(
            "Event", found, lambda each: LaunchFailure(claim=_about(each), at_s=event_s(each), reason=_message(each))
        )
        return {failure.claim: failure for failure in failures}

    def scale_up_failures(self, groups: Collection[str]) -> Mapping[str, tuple[LaunchFailure, ...]]:
        """Return why the cluster autoscaler could not scale these groups up, by the name of the group.

        Nothing is known to an operator of some namespaces without `kube-system`.
        """
        if not groups or (self._namespaces and _AUTOSCALER_EVENTS not in self._namespaces):
            return {}
        found = [each for reason in _NO_SCALE_UP for each in self._listed(_AUTOSCALER_EVENTS, f"reason={reason}")]
        failures = readable(
            "Event",
            found,
            lambda each: LaunchFailure(claim=each["metadata"]["name"], at_s=event_s(each), reason=_message(each)),
        )
        failures.sort(key=lambda failure: failure.at_s)
        return {group: tuple(each for each in failures if _names_group(each.reason, group)) for group in groups}

    def expected(self, namespace: str) -> Mapping[str, tuple[ExpectedNode, ...]]:
        """Return the nodes that autoscalers have announced for the pods of `namespace`, by the name of the pod."""
        found: dict[str, dict[str, ExpectedNode]] = {}
        for reason in _EXPECTS:
            events = self._listed(namespace, f"involvedObject.kind=Pod,reason={reason}")
            for pod, node in readable("Event", events, lambda event: (_about(event), expected_node(event))):
                of_pod = found.setdefault(pod, {})
                of_pod[node.name] = min(node, of_pod.get(node.name, node), key=_since)
        return {pod: tuple(sorted(nodes.values(), key=_since)) for pod, nodes in found.items()}

    def failed_creations(self, namespace: str) -> Sequence[FailedCreation]:
        """Return why pods could not be created in `namespace`, the last failure last."""
        found = readable(
            "Event",
            self._listed(namespace, "reason=FailedCreate"),
            lambda each: FailedCreation(owner=_about(each), at_s=event_s(each), message=_message(each)),
        )
        return sorted(found, key=lambda failure: failure.at_s)

    def _listed(self, namespace: str, fields: str) -> Sequence[Json]:
        """Return the Events of `namespace` that match a field selector; if they cannot be listed, the last known."""
        try:
            pages = list(islice(self._gateway.pages(EVENTS, namespace, fieldSelector=fields), _MOST_PAGES))
        except KubeError as error:
            if self._problems.get(namespace) != str(error):
                _LOG.warning("cannot list Events in namespace %s; the last known ones count: %s", namespace, error)
            self._problems[namespace] = str(error)
        else:
            self._problems.pop(namespace, None)
            items = (event for page in pages for event in page.items)
            self._events[namespace, fields] = readable("Event", items, _kept_event)
        return self._events.get((namespace, fields), ())


def kept_node_pool(node_pool: Json) -> Json:
    """Return what is read of a NodePool: its name and its limits."""
    limits = (node_pool.get("spec") or {}).get("limits")
    return {"metadata": {"name": node_pool["metadata"]["name"]}, "spec": {"limits": limits}}


def kept_node_claim(claim: Json) -> Json:
    """Return what is read of a NodeClaim."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    conditions = (
        {**_only(each, "type", "status", "reason", "lastTransitionTime"), "message": _message(each)}
        for each in status.get("conditions") or ()
    )
    return {
        "metadata": _only(metadata, "name", "creationTimestamp", "deletionTimestamp", "labels"),
        "status": {**_only(status, "providerID", "nodeName", "capacity"), "conditions": list(conditions)},
    }


def _only(of: Json, *keys: str) -> Json:
    return {key: of[key] for key in keys if key in of}


def _kept_event(event: Json) -> Json:
    """Return the fields of an Event that are read: its writer may have filled the others."""
    times = {key: event[key] for key in ("firstTimestamp", "lastTimestamp", "eventTime") if event.get(key)}
    series = event.get("series") or {}
    metadata = event["metadata"]
    return {
        **times,
        "metadata": {key: metadata[key] for key in ("name", "creationTimestamp") if key in metadata},
        "message": _message(event),
        "involvedObject": {"name": _about(event)[:_LONGEST]},
        **({"series": {"lastObservedTime": series.get("lastObservedTime")}} if series else {}),
    }


def refusal(failures: Sequence[FailedCreation], target: Target, since_s: float) -> str:
    """Return the last words for why the pods of `target` are not created since `since_s`, empty without any.

    The ReplicaSet of a Deployment has its name and the hash of the pod template.
    """
    own = (each for each in reversed(failures) if target.name in {each.owner, each.owner.rpartition("-")[0]})
    return next((each.message for each in own if each.at_s >= since_s - _EARLIER_S), "")


def node_pool_state(
    node_pool: Json,
    selector: Mapping[str, str],
    claims: Sequence[Json],
    nodes: Iterable[Json],
    failures: Sequence[LaunchFailure],
) -> NodePoolState:
    """Return the state of `node_pool` from its NodeClaims, all `nodes`, and the failed launches of all NodePools.

    It is that for the pool of the nodes that `selector` matches: other nodes of the NodePool (spot beside on-demand,
    say) use the limits up, and are not instances of the pool. A limit allows the nodes that exist, and as many more of
    the largest kind as fit what is left of it.
    """
    name = node_pool["metadata"]["name"]
    made = {node["metadata"]["name"]: node for node in nodes if _made_by(node, name)}
    unseen = [claim for claim in claims if (claim.get("status") or {}).get("nodeName") not in made]
    used = (*made.values(), *unseen)
    sizes = [_capacity(each) for each in used if not _contradicts(each, selector)]
    others = [_capacity(each) for each in used if _contradicts(each, selector)]
    claims = [claim for claim in claims if not _contradicts(claim, selector)]
    limits = _finite((node_pool.get("spec") or {}).get("limits"))
    by_count = limits.pop("nodes", None)
    seen = any(sizes)
    bounds = [] if by_count is None else [max(len(sizes), math.floor(by_count) - len(others))]
    if limits and not seen:
        left = [limit - sum(size.get(resource, 0.0) for size in others) for resource, limit in limits.items()]
        bounds.append(0 if min(left) <= 0 else 1)
    else:
        found = (_bound(resource, limit, sizes, others) for resource, limit in limits.items())
        bounds += [bound for bound in found if bound is not None]
    launches = [
        max(0.0, _since_s(claim, "Registered") - seconds(claim["metadata"]["creationTimestamp"]))
        for claim in claims
        if _is_registered(claim)
    ]
    errors = [*map(_launch_error, claims), *(_as_error(each) for each in failures if _is_of(each, name))]
    launched = [claim for claim in claims if _holds(claim, "Launched") and not _is_registered(claim)]
    return NodePoolState(
        instances=min(bounds, default=None),
        unseen=bool(limits) and not seen,
        problem=None if bounds else NodePoolProblem.UNLIMITED,
        detail="" if bounds else f"NodePool {name} has no limits that convert to instances",
        claims=tuple(
            sorted(
                (
                    ExpectedNode(
                        name=claim["metadata"]["name"],
                        since_s=_since_s(claim, "Launched"),
                    )
                    for claim in launched
                    if "deletionTimestamp" not in claim["metadata"]
                ),
                key=_since,
            )
        ),
        created_at_s=max((seconds(claim["metadata"]["creationTimestamp"]) for claim in claims), default=None),
        registered_at_s=max((_since_s(claim, "Registered") for claim in claims if _is_registered(claim)), default=None),
        launch_s=median(launches) if launches else None,
        # A NodeClaim that is gone is known by its name only, which begins with that of its NodePool.
        failures=tuple(sorted((each for each in failures if _is_of(each, name)), key=lambda each: each.at_s)),
        errors=tuple(sorted((each for each in errors if each is not None), key=lambda each: each.at_s)),
    )


def _is_of(failure: LaunchFailure, node_pool: str) -> bool:
    return failure.claim.rpartition("-")[0] == node_pool


def _launch_error(claim: Json) -> ProviderError | None:
    """Return why a NodeClaim is not launched, None where it is, or its condition has no known error of the provider."""
    launched = condition(claim, "Launched")
    text = f"{launched.get('reason') or ''}: {launched.get('message') or ''}"[:_LONGEST]
    kind = None if launched.get("status") == "True" else classify(text)
    return None if kind is None else ProviderError(kind=kind, at_s=_since_s(claim, "Launched"), text=text)


def _as_error(failure: LaunchFailure) -> ProviderError | None:
    kind = classify(failure.reason)
    return None if kind is None else ProviderError(kind=kind, at_s=failure.at_s, text=failure.reason)


def expected_node(event: Json) -> ExpectedNode:
    """Return the node that an Event about a pod announces."""
    message = _message(event)
    claim = _CLAIM.search(message)
    # Karpenter repeats the Event while the pod is pending; the node has been on its way since the first one.
    first = event.get("firstTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return ExpectedNode(name=claim[1] if claim else message, since_s=seconds(first))


def event_s(event: Json) -> float:
    """Return when an Event was last seen, in seconds since the epoch."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return seconds(last or event["metadata"]["creationTimestamp"])


def _about(event: Json) -> str:
    """Return the name of the object that an Event is about. Its writer may have left it out."""
    return str((event.get("involvedObject") or {}).get("name") or "")


def _names_group(message: str, group: str) -> bool:
    """Whether a message of the cluster autoscaler is about `group`: the name of a group may have spaces."""
    return f"group {group}: " in message or f"group {group} due to " in message


def _message(event: Json) -> str:
    return str(event.get("message") or "")[:_LONGEST]


def _bound(resource: str, limit: float, sizes: Sequence[Amounts], others: Sequence[Amounts]) -> int | None:
    largest = max((size.get(resource, 0.0) for size in sizes), default=0.0)
    if largest <= 0:
        return None
    used = sum(size.get(resource, largest) for size in (*sizes, *others))
    return len(sizes) + max(0, math.floor((limit - used) / largest + 1e-9))


def _capacity(of: Json) -> Amounts:
    return _finite((of.get("status") or {}).get("capacity"))


def _finite(texts: Mapping[str, object] | None) -> dict[str, float]:
    """Return the amounts that are finite numbers: the API server accepts 1e3.5 and 1e400 too."""
    return {resource: value for resource, value in amounts(texts).items() if math.isfinite(value)}


def _made_by(of: Json, node_pool: str) -> bool:
    return bool((of["metadata"].get("labels") or {}).get(_LABEL) == node_pool)


def _contradicts(of: Json, selector: Mapping[str, str]) -> bool:
    """Whether a node or NodeClaim has another value of a selected label; a label may come with the node only."""
    labels = of["metadata"].get("labels") or {}
    return any(labels.get(key, value) != value for key, value in selector.items())


def _is_registered(claim: Json) -> bool:
    return _holds(claim, "Registered")


def _holds(claim: Json, kind: str) -> bool:
    return bool(condition(claim, kind).get("status") == "True")


def _since_s(claim: Json, kind: str) -> float:
    return seconds(condition(claim, kind).get("lastTransitionTime") or claim["metadata"]["creationTimestamp"])


def _since(node: ExpectedNode) -> tuple[float, str]:
    return node.since_s, node.name
