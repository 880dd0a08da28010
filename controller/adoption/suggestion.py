"""Suggests ComputePools and SpeechPipelines in mode Recommend for what runs in a namespace. Pure.

Every inferred value has a comment with its evidence. A comment that begins with `guess` wants a check, one that begins
with `TODO` wants a value that nothing in the cluster states.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from controller.adoption.annotated_yaml import Field, Inline, Items, render
from controller.adoption.candidates import Candidate, LeftOut, candidates, on_node
from controller.adoption.exports import RECENT_S, Exports, UserMetric
from controller.adoption.fit import replicas_per_node
from controller.adoption.inventory import Inventory, Unread, labels_of, name_of, pod_template
from controller.adoption.list_prices import DATE, REGION, USD_PER_HOUR
from controller.adoption.node_groups import REGION_LABEL, NodeGroup, capacity_bound, dns_label, node_groups
from controller.adoption.ray_services import serve_candidates
from controller.adoption.stage_order import Placed, in_order, pass_ratios
from controller.core.messages.phrases import count_of, duration, money, number
from controller.core.state.spec import Target
from controller.kube.matching import kept_workload
from controller.kube.workloads import NodeNames, target_state
from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import Absence, PlacementTarget, Quantity, Reading

_API_VERSION = "sluice.dev/v1alpha1"
_MOST_STAGES, _MOST_PLACEMENTS = 20, 8
_SLA_FACTOR = 1.5
_UNKNOWN_PRICE = "1"
_MOST_GUESSES = 3
_DEFAULT_DRAIN_S = 60
_NEXT = (
    "Suggested by sluice init. Nothing was applied; mode Recommend changes nothing.",
    "guess: check this value. TODO: set this value; the cluster does not state it.",
    "serviceTime and memory are left out: Sluice learns them.",
    "Next: sluice validate FILE; sluice doctor FILE; kubectl apply -f FILE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The candidates for stages in a namespace, the workloads left out, and the groups of nodes.

    `unread` says what of the cluster could not be read, and why.
    """

    namespace: str
    stages: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    groups: tuple[NodeGroup, ...]
    unread: tuple[str, ...]

    def used_groups(self) -> tuple[NodeGroup, ...]:
        """Return the groups of nodes on which candidates run."""
        used = {candidate.group.name for candidate in self.stages if candidate.group is not None}
        return tuple(group for group in self.groups if group.name in used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is measured: quantities by workload and the users' metrics by name."""

    quantities: Mapping[str, Mapping[Quantity, Reading]] = field(default_factory=dict)
    users: Mapping[UserMetric, Reading] = field(default_factory=dict)

    def of(self, candidate: Candidate, quantity: Quantity) -> float | None:
        """Return the number that was measured for a candidate, None if there is none."""
        return _number(self.quantities.get(candidate.name, {}).get(quantity))


def find_stages(inventory: Inventory, namespace: str, exports: Exports, *, all_of_them: bool) -> Findings:
    """Return what in `namespace` can be a stage; `all_of_them`: every workload that was read is one."""
    nodes, node_pools = inventory.nodes, inventory.node_pools
    unread = [listed.reason for listed in (nodes, node_pools) if isinstance(listed, Unread)]
    groups = node_groups(
        () if isinstance(nodes, Unread) else nodes, () if isinstance(node_pools, Unread) else node_pools
    )
    workspace = inventory.workspaces[namespace]
    stages, left_out = candidates(workspace, exports, groups, all_of_them=all_of_them)
    served, unlisted = serve_candidates(workspace, groups)
    return Findings(
        namespace=namespace,
        stages=(*stages, *served),
        left_out=(*left_out, *unlisted),
        groups=groups,
        unread=(*unread, *workspace.unread()),
    )


def measured_targets(findings: Findings) -> tuple[PlacementTarget, ...]:
    """Return what to read of the metrics of each candidate whose pods export some; the stage is the workload's name.

    The series of Ray Serve have names of replicas, which only Ray says: nothing is read of them.
    """
    return tuple(
        PlacementTarget(
            pipeline=PipelineKey(f"{findings.namespace}/init"),
            stage=StageName(candidate.name),
            placement=PoolName("init"),
            namespace=findings.namespace,
            pods=frozenset(name_of(pod) for pod in on_node(candidate.pods)),
            preset=candidate.preset.value,
            window_s=float(RECENT_S),
            concurrency=1,
            batch_limit=1,
            overrides={},
            model=_model(candidate),
        )
        for candidate in findings.stages
        if candidate.pods and candidate.target.serve is None
    )


def user_queries(findings: Findings, exports: Exports) -> dict[UserMetric, str]:
    """Return the query for the present value of each metric that may be the users' load or latency."""
    loads = {metric: f"sum({metric.selector(findings.namespace)})" for metric in exports.loads[:_MOST_GUESSES]}
    return loads | {
        metric: _percentile(metric, findings.namespace, f"{RECENT_S}s") for metric in exports.latencies[:_MOST_GUESSES]
    }


def suggestion(inventory: Inventory, findings: Findings, exports: Exports, measured: Measured) -> str:
    """Return the manifests as YAML: the pools that the stages use, and one pipeline per group of stages."""
    pools = {group.name: _Pool.of(group, exports) for group in findings.used_groups()}
    if any(candidate.group is None for candidate in findings.stages):
        pools[_NO_GROUP.name] = _Pool.of(_NO_GROUP, exports)
    by_pipeline: dict[str, list[Candidate]] = {}
    for candidate in findings.stages:
        by_pipeline.setdefault(candidate.pipeline.value, []).append(candidate)
    evidence = _Evidence(inventory=inventory, findings=findings, exports=exports, measured=measured)
    documents = [pool.document() for pool in pools.values()]
    for name, members in sorted(by_pipeline.items()):
        pipeline = _Pipeline(name, members, pools, evidence)
        documents.append(pipeline.document())
    return render(
        documents,
        head=(
            *_NEXT,
            *(f"Not read: {why}" for why in (exports.problem, *findings.unread) if why),
            *_left_out(findings),
        ),
    )


_NO_GROUP = NodeGroup(
    name="todo",
    selector={"sluice.dev/pool": "todo"},
    because="TODO: the labels of the nodes for the stages whose pods have no node",
    device="CPU",
    nodes=(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """All that a pipeline is inferred from."""

    inventory: Inventory
    findings: Findings
    exports: Exports
    measured: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """A group of nodes with the price of an instance; `priced` says whether the price is known."""

    group: NodeGroup
    price: str
    price_because: str
    priced: bool

    @classmethod
    def of(cls, group: NodeGroup, exports: Exports) -> "_Pool":
        """Return the pool of `group`, with the price that the cluster exports, else the list price of its type."""
        prices = [exports.node_prices[name_of(node)] for node in group.nodes if name_of(node) in exports.node_prices]
        if prices:
            because = f"mean of node_total_hourly_cost (OpenCost) over {count_of(len(prices), 'node')}"
            return cls(group=group, price=f"{sum(prices) / len(prices):.6f}", price_because=because, priced=True)
        listed = USD_PER_HOUR.get(group.instance_type or "")
        if listed is not None:
            region = next((labels_of(node).get(REGION_LABEL) for node in group.nodes), None)
            elsewhere = f"; the nodes are in {region}" if region not in {None, REGION} else ""
            spot = any(labels_of(node).get("karpenter.sh/capacity-type") == "spot" for node in group.nodes)
            less = "; spot nodes cost less" if spot else ""
            because = f"guess: list price in {REGION} on {DATE}{elsewhere}{less}; set what you pay"
            return cls(group=group, price=listed, price_because=because, priced=True)
        kind = f" of {group.instance_type}" if group.instance_type else ""
        because = f"TODO: USD per hour{kind} is not known. With {_UNKNOWN_PRICE}, costs count instances."
        return cls(group=group, price=_UNKNOWN_PRICE, price_because=because, priced=False)

    def document(self) -> tuple[Field, ...]:
        """Return the ComputePool."""
        group, bound = self.group, capacity_bound(self.group)
        capacity = Field(key="capacity", value=dict(bound.capacity), notes=(bound.because,))
        selector: Inline = dict(group.selector)
        device = Field(key="device", value=group.device)
        price = Field(key="price", value={"perHour": self.price}, notes=(self.price_because,))
        return (
            Field(key="apiVersion", value=_API_VERSION),
            Field(key="kind", value="ComputePool"),
            Field(key="metadata", value={"name": group.name}),
            Field(
                key="spec",
                value=(
                    device,
                    Field(key="nodeSelector", value=selector, notes=(group.because,)),
                    price,
                    capacity,
                ),
            ),
        )


class _Pipeline:
    """One suggested SpeechPipeline of `members`."""

    def __init__(
        self, name: str, members: Sequence[Candidate], pools: Mapping[str, _Pool], evidence: _Evidence
    ) -> None:
        self._name = name
        self._pools = pools
        self._evidence = evidence
        self._stages = _stages(members)
        self._rates = self._measured_rates()
        self._order = in_order(list(self._stages), self._calls(), self._rates)
        self._ratios = pass_ratios(self._order, self._rates)

    def document(self) -> tuple[Field, ...]:
        """Return the SpeechPipeline."""
        graces_s = [own.grace_s() for placed in self._stages.values() for own in placed]
        grace_s = min((time_s for time_s in graces_s if time_s is not None), default=_DEFAULT_DRAIN_S)
        drain = Field(
            key="scaling",
            value=(Field(key="scaleDown", value={"drain": f"{max(1, grace_s)}s"}),),
            notes=("drain: the shortest terminationGracePeriodSeconds of the stages",),
        )
        first = next(candidate for own in self._stages.values() for candidate in own)
        kept = self._order[:_MOST_STAGES]
        beyond = [placed.name for placed in self._order[_MOST_STAGES:]]
        over = (f"TODO: a pipeline has at most {_MOST_STAGES} stages; left out: {', '.join(beyond)}",) if beyond else ()
        return (
            Field(key="apiVersion", value=_API_VERSION),
            Field(key="kind", value="SpeechPipeline"),
            Field(
                key="metadata",
                value={"name": self._name, "namespace": self._evidence.findings.namespace},
                notes=(first.pipeline.because,),
            ),
            Field(
                key="spec",
                value=(
                    Field(key="mode", value="Recommend"),
                    *(self._demand(), self._sla(), self._budget()),
                    *([drain] if grace_s < _DEFAULT_DRAIN_S else []),
                    Field(key="stages", value=Items(items=tuple(map(self._stage, kept))), notes=over),
                ),
            ),
        )

    def _measured_rates(self) -> dict[str, float]:
        rates = {}
        for name, own in self._stages.items():
            serving = [candidate for candidate in own if on_node(candidate.pods)]
            readings = [self._evidence.measured.of(candidate, Quantity.ARRIVAL_RATE) for candidate in serving]
            known = [rate for rate in readings if rate is not None]
            if known and len(known) == len(readings):
                rates[name] = sum(known)
        return rates

    def _calls(self) -> dict[tuple[str, str], str]:
        """Return the evidence of calls between stages: names of Services in the containers, and the service mesh."""
        calls: dict[tuple[str, str], str] = {}
        for source, senders in self._stages.items():
            for into, receivers in self._stages.items():
                for sender in senders:
                    for receiver in receivers:
                        for service in sorted(receiver.services & sender.mentions.keys()):
                            because = f"{sender.target}: {sender.mentions[service]} names Service {service}"
                            calls.setdefault((source, into), because)
                        rate = self._evidence.exports.calls.get((sender.name, receiver.name))
                        if rate is not None:
                            because = f"service mesh: {number(rate)} requests/s from {sender.name} to {receiver.name}"
                            calls.setdefault((source, into), because)
        return calls

    def _demand(self) -> Field:
        exports, measured = self._evidence.exports, self._evidence.measured
        namespace = self._evidence.findings.namespace
        entry = self._order[0].name
        rate = self._rates.get(entry)
        for metric in exports.loads[:_MOST_GUESSES]:
            load = _number(measured.users.get(metric))
            if load is None:
                continue
            others = [other.name for other in exports.loads[:_MOST_GUESSES] if other is not metric]
            also = f" Other candidates: {', '.join(others)}." if others else ""
            chunk, chunk_note = "200ms", "TODO: chunk is the audio in one item; its length is not known"
            if rate and load > 0 and 1e-3 <= load / rate <= 3600:
                chunk = _milliseconds(load / rate)
                chunk_note = f"guess: chunk = {number(load)} streams / {number(rate)} items/s at {entry}"
            return Field(
                key="demand",
                value=(
                    Field(key="unit", value="Streams"),
                    Field(key="chunk", value=chunk, notes=(chunk_note,)),
                    Field(key="query", value=f"sum({metric.selector(namespace)})"),
                ),
                notes=(f"guess from the name of the metric; it is {number(load)} now.{also}",),
            )
        if exports.nginx_rps is not None:
            query = (
                f'sum(rate(nginx_ingress_controller_requests{{exported_namespace="{namespace}"}}[{self._window()}]))'
            )
            because = f"guess: requests of ingress-nginx to this namespace, {number(exports.nginx_rps)}/s now"
            return _requests(query, because)
        return _requests(
            "todo_offered_requests_per_second",
            "TODO: PromQL for the offered load, measured at your ingress: no metric looks like it. For streams, set "
            "unit: Streams and chunk, the audio in one item."
            + (f" {entry} gets {number(rate)} items/s now." if rate else ""),
        )

    def _sla(self) -> Field:
        exports, measured, namespace = (
            self._evidence.exports,
            self._evidence.measured,
            self._evidence.findings.namespace,
        )
        for metric in exports.latencies[:_MOST_GUESSES]:
            now_s = _number(measured.users.get(metric))
            if now_s:
                query = _percentile(metric, namespace, self._window())
                return _sla(now_s, f"the p95 of {metric.name.removesuffix('_bucket')}", query)
        tails = []
        for own in self._stages.values():
            slowest = [measured.of(candidate, Quantity.LATENCY_P95) for candidate in own]
            tails += [max((tail for tail in slowest if tail is not None), default=None)]
        known = [tail for tail in tails if tail]
        if known and len(known) == len(tails):
            return _sla(sum(known), "the sum of the stages' p95", None)
        note = "TODO: your promise to users: this share of the items is answered within this time. No latency was read."
        return Field(key="sla", value={"latency": "500ms", "percentile": 95}, notes=(note,))

    def _budget(self) -> Field:
        most = now = 0.0
        for candidate in (candidate for own in self._stages.values() for candidate in own):
            pool = self._pools[(candidate.group or _NO_GROUP).name]
            share = float(pool.price) / (self._per_instance(candidate)[0])
            most, now = most + candidate.bounds.most * share, now + candidate.replicas * share
        used = {(candidate.group or _NO_GROUP).name for own in self._stages.values() for candidate in own}
        unknown = sorted(name for name in used if not self._pools[name].priced)
        because = f"guess: the cost of replicas.max of all placements; the replicas of now cost {money(now)}"
        if unknown:
            because = f"TODO: follows from the price of {', '.join(unknown)}. With the prices above, {because[7:]}"
        return Field(key="budget", value={"perHour": f"{math.ceil(most * 100 - 1e-6) / 100:.2f}"}, notes=(because,))

    def _stage(self, placed: Placed) -> tuple[Field, ...]:
        own = self._stages[placed.name]
        first = own[0]
        notes = tuple(filter(None, (placed.because, first.stage.because)))
        metrics: Inline = {"preset": first.preset.value}
        routed = Field(key="routing", value="LeastLoaded", notes=("Ray asks two replicas, and takes the less loaded",))
        model = _model(first)
        metric_notes = [first.preset.because]
        if model is not None:
            metrics["model"] = model
            metric_notes.append(f"guess: model: the pods report {', '.join(sorted(first.models))}")
        if self._window() != "1m":
            metrics["window"] = self._window()
            metric_notes.append("window: four scrape intervals")
        after = [Field(key="after", value=list(placed.after))] if placed.after is not None else []
        ratio = self._ratios.get(placed.name)
        ratios = []
        if ratio is not None and 1e-3 <= ratio <= 100 and abs(ratio - 1) > 0.02:
            because = "measured: items/s of the next stage over items/s of this one"
            ratios = [Field(key="passRatio", value=f"{ratio:.3f}".rstrip("0").rstrip("."), notes=(because,))]
        placements = Items(items=tuple(map(self._placement, own[:_MOST_PLACEMENTS])))
        beyond = [str(candidate.target) for candidate in own[_MOST_PLACEMENTS:]]
        cut = f"TODO: a stage has at most {_MOST_PLACEMENTS} placements; left out: {', '.join(beyond)}"
        return (
            Field(key="name", value=placed.name, notes=notes),
            *after,
            *ratios,
            *([routed] if first.target.serve is not None else []),
            Field(key="metrics", value=metrics, notes=tuple(metric_notes)),
            Field(key="placements", value=placements, notes=(cut,) if beyond else ()),
        )

    def _placement(self, candidate: Candidate) -> tuple[Field, ...]:
        pool = candidate.group or _NO_GROUP
        target = candidate.target
        per_instance, because = self._per_instance(candidate)
        batch, startup_s = candidate.batch_max(), self._startup_s(candidate)
        optional = []
        if batch is not None:
            optional.append(Field(key="batching", value={"max": batch}, notes=("--max-num-seqs of the server",)))
        if startup_s is not None:
            note = f"median of {count_of(len(candidate.pods), 'pod')}, from scheduled to ready"
            optional.append(Field(key="startup", value=f"{max(1, math.ceil(startup_s))}s", notes=(note,)))
        return (
            Field(key="pool", value=pool.name, notes=(candidate.group_because,)),
            Field(key="target", value=_reference(target)),
            Field(
                key="replicas",
                value={"min": candidate.bounds.least, "max": candidate.bounds.most},
                notes=(candidate.bounds.because,),
            ),
            Field(key="perInstance", value=per_instance, notes=(because,)),
            *optional,
        )

    def _per_instance(self, candidate: Candidate) -> tuple[int, str]:
        """Return how many replicas of a candidate fit on one node of its group, at least 1, and the evidence."""
        pods, because = self._pods_per_instance(candidate)
        if candidate.per_pod is None:
            return pods, because
        return pods * int(candidate.per_pod.value), f"{candidate.per_pod.because}. {count_of(pods, 'worker')} on a node"

    def _pods_per_instance(self, candidate: Candidate) -> tuple[int, str]:
        if candidate.group is None or not candidate.group.nodes:
            return 1, "TODO: there is no node on which to work out how many replicas fit"
        node = candidate.group.nodes[0]
        pods = self._evidence.inventory.pods_of_node.get(name_of(node), ())
        fit = replicas_per_node(pod_template(candidate.workload)["spec"], node, pods)
        if fit.count is None:
            counts: dict[str, int] = {}
            for pod in on_node(candidate.pods):
                counts[pod["spec"]["nodeName"]] = counts.get(pod["spec"]["nodeName"], 0) + 1
            most = max(counts.values(), default=1)
            return most, f"TODO: {fit.because}. Guess: the most pods of it on one node now"
        if fit.count == 0:
            return 1, f"TODO: no replica fits: {fit.because}"
        return fit.count, fit.because

    def _startup_s(self, candidate: Candidate) -> float | None:
        if candidate.target.serve is not None:  # its pods are Ray's workers, which start apart from its replicas
            return None
        state = target_state(kept_workload(candidate.workload), candidate.pods, NodeNames(unread=True))
        times_s = [replica.startup_s for replica in state.serving if replica.startup_s is not None]
        return median(times_s) if times_s else None

    def _window(self) -> str:
        """Return the time window of rates: four scrape intervals, at least a minute."""
        interval = self._evidence.exports.scrape_interval_s or 15.0
        seconds = max(60, math.ceil(4 * interval / 10 - 1e-6) * 10)
        return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"


def _reference(target: Target) -> Inline:
    """Return a target as in a manifest."""
    kind: Inline = {"apiVersion": target.api_version, "kind": target.kind}
    if (serve := target.serve) is None:
        return {**kind, "name": target.name}
    own: Inline = {"name": serve.service, "application": serve.application, "deployment": serve.deployment}
    return {**kind, **own, **({"workerGroup": serve.worker_group} if serve.worker_group else {})}


def _left_out(findings: Findings) -> list[str]:
    """Return a sentence for each reason why workloads are no stages."""
    names: dict[str, list[str]] = {}
    for each in findings.left_out:
        names.setdefault(each.because, []).append(str(each.target))
    return [f"Left out: {', '.join(own)}: {why}. Select stages with --selector." for why, own in names.items()]


def _stages(members: Iterable[Candidate]) -> dict[str, tuple[Candidate, ...]]:
    """Return the candidates of each stage: those that serve the same stage on different pools are its placements."""
    stages: dict[str, list[Candidate]] = {}
    for candidate in members:
        name = next((name for name, own in stages.items() if _same_stage(candidate, own)), None)
        if name is None:
            name = candidate.stage.value if candidate.stage.value not in stages else dns_label(candidate.target.name)
            stages[name] = []
        stages[name].append(candidate)
    return {name: tuple(own) for name, own in stages.items()}


def _same_stage(candidate: Candidate, own: Sequence[Candidate]) -> bool:
    """Return whether a workload serves the stage of `own` on another pool.

    It does if the labels of their metrics name the same stage, or if their names begin alike and one Service is in
    front of both.
    """
    pools = {(other.group or _NO_GROUP).name for other in own}
    if (candidate.group or _NO_GROUP).name in pools:
        return False
    other = own[0]
    if candidate.stage.value == other.stage.value:
        return True
    begins_alike = candidate.name.partition("-")[0] == other.name.partition("-")[0]
    return begins_alike and bool(candidate.services & other.services)


def _model(candidate: Candidate) -> str | None:
    """Return the model that a stage must select, None if its pods report at most one."""
    if len(candidate.models) < 2:
        return None
    return min(candidate.models, key=lambda model: ("ensemble" not in model.lower(), model))


def _requests(query: str, because: str) -> Field:
    return Field(
        key="demand", value=(Field(key="unit", value="Requests"), Field(key="query", value=query)), notes=(because,)
    )


def _sla(now_s: float, what: str, query: str | None) -> Field:
    latency = _milliseconds(_SLA_FACTOR * now_s)
    note = f"TODO: your promise to users. Guess: {_SLA_FACTOR:g} × {what}, which is {duration(now_s)} now"
    fields = (Field(key="latency", value=latency), Field(key="percentile", value=95))
    return Field(key="sla", value=(*fields, *([Field(key="query", value=query)] if query else [])), notes=(note,))


def _percentile(metric: UserMetric, namespace: str, window: str) -> str:
    """Return PromQL for the p95 of a histogram in seconds; the name says whether it is in milliseconds."""
    in_ms = any(unit in metric.name for unit in ("_milliseconds", "_ms_", "_millis"))
    inner = f"histogram_quantile(0.95, sum by (le) (rate({metric.selector(namespace)}[{window}])))"
    return f"{inner} / 1000" if in_ms else inner


def _milliseconds(seconds: float) -> str:
    """Return a time with two significant digits, rounded up, as a duration in milliseconds of at most 24 h."""
    ms = min(max(1.0, seconds * 1000), 86_400_000.0)
    step = 10.0 ** max(0, math.floor(math.log10(ms)) - 1)
    return f"{math.ceil(ms / step - 1e-9) * step:.0f}ms"


def _number(reading: Reading | None) -> float | None:
    return None if reading is None or isinstance(reading, Absence) else reading
