"""llm-d's Workload Variant Autoscaler, saturation V1, its default, with the HPA that acts on its published targets.

Modelled on internal/saturation/analyzer.go, internal/engines/saturation/engine.go and
config/samples/hpa-integration.yaml of llm-d/llm-d-workload-variant-autoscaler.

Mapping to speech: a stage is a model, its placements are the variants, a replica's price their cost. KV cache usage is
the share of a replica's session slots in use (0 without `memory`), the queue its waiting items. The peaks of a minute
count: of 15 s means here, of samples in the original, so a spike of a few seconds counts for less here. As in the
original, a variant without a reporting replica is never chosen, so a variant at zero stays at zero. A single pending
replica stops all decisions about its stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.core.state.policy import Policy
from optimizer.model import PlacementId
from simulations.policies.autoscaler import AutoscalerDecision, DetailedSnapshot, decision_of
from simulations.policies.deployments import Deployment, placements
from simulations.policies.hpa import HpaBehavior, HpaControls, average_value_replicas

_LEAST_TO_SHRINK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WvaSettings:
    """The settings of `wva`. Defaults: the chart's saturation thresholds, 30 s between decisions, the sample's HPA.

    `peak_window_s` is the time over which peaks of slots and queue are taken.
    """

    kv_threshold: float = 0.80
    queue_threshold: float = 5.0
    kv_spare_trigger: float = 0.10
    queue_spare_trigger: float = 3.0
    interval_s: float = 30.0
    peak_window_s: float = 60.0
    hpa_interval_s: float = 15.0
    hpa_up_pods: int = 10
    hpa_down_window_s: float = 0.0
    hpa_tolerance: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """The load of one replica: `kv` is the share (0–1) of its session slots in use, `queue` its waiting items."""

    kv: float
    queue: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One variant of a model: one placement of a stage.

    `cost` is USD per hour of a replica. `loads` has the replicas that report, `current` and `pending` are counts of
    replicas in the cluster. `published` is the last published target, None before the first.
    """

    name: str
    cost: float
    loads: tuple[ReplicaLoad, ...]
    current: int
    pending: int
    published: int | None


def saturation(loads: Sequence[ReplicaLoad], settings: WvaSettings) -> tuple[bool, bool]:
    """Return two values: whether a model needs one replica more, and whether one fewer would be enough."""
    calm = [load for load in loads if load.kv < settings.kv_threshold and load.queue < settings.queue_threshold]
    if not loads:
        return False, False
    count = len(calm)
    spare_kv = sum(settings.kv_threshold - load.kv for load in calm) / count if calm else 0.0
    spare_queue = sum(settings.queue_threshold - load.queue for load in calm) / count if calm else 0.0
    grow = spare_kv < settings.kv_spare_trigger or spare_queue < settings.queue_spare_trigger
    if count < _LEAST_TO_SHRINK:
        return grow, False
    spread = count / (count - 1)
    left_kv = settings.kv_threshold - (settings.kv_threshold - spare_kv) * spread
    left_queue = settings.queue_threshold - (settings.queue_threshold - spare_queue) * spread
    return grow, left_kv >= settings.kv_spare_trigger and left_queue >= settings.queue_spare_trigger


def targets(variants: Sequence[Variant], settings: WvaSettings) -> Mapping[str, int]:
    """Return the replicas to publish for each variant of a model, by name; variants that do not report are left out."""
    reporting = [variant for variant in variants if variant.loads]
    if any(_moving(variant) for variant in reporting):
        return {
            variant.name: variant.current if variant.published is None else variant.published for variant in reporting
        }
    wanted = {variant.name: len(variant.loads) for variant in reporting}
    grow, may_shrink = saturation([load for variant in reporting for load in variant.loads], settings)
    if grow:
        able = [variant for variant in reporting if variant.pending == 0]
        if able:
            wanted[min(able, key=lambda variant: (variant.cost, variant.name)).name] += 1
    elif may_shrink:
        able = [variant for variant in reporting if wanted[variant.name] > 1]
        if able:
            wanted[max(able, key=lambda variant: (variant.cost, variant.name)).name] -= 1
    return wanted


def _moving(variant: Variant) -> bool:
    pending = variant.published is not None and variant.published != variant.current
    return pending or len(variant.loads) != variant.current


class Wva:
    """The baseline `wva`: one model per stage; one HPA per variant applies the published targets."""

    def __init__(self, settings: WvaSettings) -> None:
        self._settings = settings
        self.interval_s = self.metrics_window_s = settings.hpa_interval_s  # the analyzer runs only every second time
        behavior = HpaBehavior(up_pods=settings.hpa_up_pods, up_share=0.0, down_window_s=settings.hpa_down_window_s)
        self._controls = HpaControls(behavior)
        self._published: dict[PlacementId, int] = {}
        self._seen: dict[PlacementId, list[tuple[float, Mapping[tuple[float, int], ReplicaLoad]]]] = {}
        self._decided_s: float | None = None

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> AutoscalerDecision:
        """Return the decision with the replicas that the HPAs set for the published targets."""
        now_s, settings = snapshot.now_s, self._settings
        models = [placements(snapshot, state, stage) for state in snapshot.pipelines for stage in state.spec.stages]
        peaks = {own.name: self._peak(own, now_s) for model in models for own in model}
        if self._decided_s is None or now_s >= self._decided_s + settings.interval_s:
            self._decided_s = now_s
            for model in models:
                self._publish(model, peaks, snapshot)
        desired = {
            own.name: self._controls.replicas(own, now_s, self._recommended(own)) for model in models for own in model
        }
        return decision_of(snapshot, desired, "spare slots and queue of the replicas that are not saturated", policy)

    def _publish(
        self,
        model: Sequence[Deployment],
        peaks: Mapping[PlacementId, tuple[ReplicaLoad, ...]],
        snapshot: DetailedSnapshot,
    ) -> None:
        variants = [
            Variant(
                name=own.placement.name,
                cost=snapshot.pools[own.placement.pool].spec.replica_price_per_hour(own.placement.prior.per_instance),
                loads=peaks[own.name],
                current=own.target.existing,
                pending=max(0, own.target.existing - own.target.ready),
                published=self._published.get(own.name),
            )
            for own in model
        ]
        wanted = targets(variants, self._settings)
        for own in model:
            if own.placement.name in wanted:
                self._published[own.name] = own.within(wanted[own.placement.name])

    def _recommended(self, own: Deployment) -> int | None:
        published, tolerance = self._published.get(own.name), self._settings.hpa_tolerance
        if published is None:
            return None
        return average_value_replicas(float(published), target=1.0, current=own.target.desired, tolerance=tolerance)

    def _peak(self, own: Deployment, now_s: float) -> tuple[ReplicaLoad, ...]:
        """Return the peaks of each replica that reports; a replica is identified by the time it became ready."""
        slots = own.placement.prior.session_slots
        loads: dict[tuple[float, int], ReplicaLoad] = {}
        for replica in own.replicas:
            twins = sum(since_s == replica.ready_since_s for since_s, _ in loads)
            kv = replica.sessions / slots if slots else 0.0
            loads[(replica.ready_since_s, twins)] = ReplicaLoad(kv=kv, queue=replica.queued)
        seen = [old for old in self._seen.get(own.name, ()) if old[0] > now_s - self._settings.peak_window_s]
        self._seen[own.name] = seen = [*seen, (now_s, loads)]
        past = {replica: [old[replica] for _, old in seen if replica in old] for replica in loads}
        return tuple(
            ReplicaLoad(kv=max(load.kv for load in own_past), queue=max(load.queue for load in own_past))
            for own_past in past.values()
        )
