"""The objects with which HPA and KEDA scale the stages of a pipeline. Pure.

They are those of the documentation of each, with the settings of the simulated policies `hpa` and `keda`, so that a
live and a simulated run are of the same settings. Each stage has one Deployment that is scaled, its first placement.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controller.core.state.spec import PipelineSpec, StageSpec
from simulations.lab.cluster.deployments import UnsupportedManifest
from simulations.policies.deployments import least_replicas
from simulations.policies.hpa import TOLERANCE, HpaSettings
from simulations.policies.keda import KedaSettings

UTILIZATION, QUEUED = "stage_utilization", "stage_queued"
"""The metrics of pods that an HPA reads."""
_PRESET = "generic"
_DEFAULT_DOWN_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A Deployment that an autoscaler may set to `least` to `most` replicas."""

    namespace: str
    name: str
    least: int
    most: int


def scaled(pipeline: PipelineSpec) -> tuple[Scaled, ...]:
    """Return the Deployment of each stage that is scaled.

    Raises:
        UnsupportedManifest: a stage does not have the metrics that the rivals read.
    """
    return tuple(_first(pipeline, stage) for stage in pipeline.stages)


def _first(pipeline: PipelineSpec, stage: StageSpec) -> Scaled:
    if stage.preset != _PRESET:
        raise UnsupportedManifest(
            f"pipeline {pipeline.key}, stage {stage.name}: metrics.preset: {stage.preset!r}: must be {_PRESET} in a "
            "race: HPA and KEDA read its metrics by queries of that preset"
        )
    own = stage.placements[0]
    return Scaled(
        namespace=pipeline.namespace,
        name=own.target.name,
        least=least_replicas(stage, 0),
        most=own.prior.max_replicas,
    )


def adapter_queries(settings: HpaSettings) -> Mapping[str, str]:
    """Return the queries of prometheus-adapter by metric: the share of busy time of a replica, and what waits there."""
    window, of_pods, by = f"{settings.metrics_window_s:g}s", "{<<.LabelMatchers>>}", "by (<<.GroupBy>>)"
    return {
        UTILIZATION: (
            f"sum {by} (rate(speech_stage_busy_seconds_total{of_pods}[{window}]))"
            f" / sum {by} (speech_stage_capacity{of_pods})"
        ),
        QUEUED: f"sum {by} (avg_over_time(speech_stage_queue_depth{of_pods}[{window}]))",
    }


def hpa(work: Scaled, settings: HpaSettings) -> dict[str, Any]:
    """Return the HorizontalPodAutoscaler of a Deployment.

    https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale-walkthrough/
    """
    targets = {UTILIZATION: settings.target_utilization}
    if settings.target_queued > 0:
        targets[QUEUED] = settings.target_queued
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": work.name, "namespace": work.namespace},
        "spec": {
            "scaleTargetRef": _target(work),
            "minReplicas": work.least,
            "maxReplicas": work.most,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": name},
                        "target": {"type": "AverageValue", "averageValue": f"{round(1000 * target)}m"},
                    },
                }
                for name, target in targets.items()
            ],
            **_behavior(settings.down_window_s, settings.tolerance),
        },
    }


def scaled_object(work: Scaled, settings: KedaSettings, prometheus_url: str) -> dict[str, Any]:
    """Return the ScaledObject of a Deployment, with KEDA's trigger for Prometheus.

    https://keda.sh/docs/2.21/scalers/prometheus/
    """
    of_pods = f'{{namespace="{work.namespace}", app="{work.name}"}}'
    window = f"{settings.metrics_window_s:g}s"
    query = (
        f"sum(avg_over_time(speech_stage_queue_depth{of_pods}[{window}])"
        f" + avg_over_time(speech_stage_inflight{of_pods}[{window}]))"
    )
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": work.name, "namespace": work.namespace},
        "spec": {
            "scaleTargetRef": _target(work),
            "minReplicaCount": work.least,
            "maxReplicaCount": work.most,
            "triggers": [
                {
                    "type": "prometheus",
                    "metadata": {
                        "serverAddress": prometheus_url,
                        "query": query,
                        "threshold": f"{settings.target_ongoing:g}",
                        # A missing series is no load of 0, as in KEDA's own advice.
                        "ignoreNullValues": "false",
                    },
                }
            ],
            "advanced": {"horizontalPodAutoscalerConfig": _behavior(settings.down_window_s, TOLERANCE)},
        },
    }


def _target(work: Scaled) -> dict[str, str]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": work.name}


def _behavior(down_window_s: float, tolerance: float) -> dict[str, Any]:
    """Return `spec.behavior` of an HPA where it differs from the defaults."""
    down = dict(_differing(stabilizationWindowSeconds=(down_window_s, _DEFAULT_DOWN_S)))
    by_tolerance = dict(_differing(tolerance=(tolerance, TOLERANCE)))
    rules = {"scaleUp": {**by_tolerance}, "scaleDown": {**down, **by_tolerance}}
    rules = {name: rule for name, rule in rules.items() if rule}
    return {"behavior": rules} if rules else {}


def _differing(**values: tuple[float, float]) -> Iterator[tuple[str, Any]]:
    for name, (value, default) in values.items():
        if value != default:
            yield name, round(value) if name.endswith("Seconds") else f"{value:g}"
