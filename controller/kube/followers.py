"""Recognizes autoscalers that set a workload to the replicas that Sluice recommends for it in mode Recommend.

Such an autoscaler reads the recommendation from the external scaler (`controller.keda`) or from the metric `METRIC`,
and nothing else: with a second trigger the larger value counts, and the replicas are not those of the decision.
"""

import re
from dataclasses import dataclass

from controller.core.state.spec import PipelineSpec
from controller.kube.gateway import Json
from optimizer.model import PlacementKey

METRIC = "sluice_stage_replicas_recommended"
"""The metric with the recommended replicas, one series for each placement."""
_MOST_CHARACTERS = 500
"""A longer text of another's object is not read: a query that follows Sluice has a fraction of that."""
_QUERY = re.compile(rf"(?:max ?\( ?)?{METRIC} ?\{{(?P<matchers>[^{{}}]*)\}}(?: ?\))?")
_MATCHER = re.compile(r"""([a-z_]+) ?= ?(["'])([^"'\\]*)\2""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What an autoscaler follows: a stage of a pipeline in its namespace, on `placement`; None where it names none."""

    pipeline: str
    stage: str
    placement: str | None

    def is_of(self, spec: PipelineSpec, key: PlacementKey) -> bool:
        """Return whether this is the recommendation for the placement `key`."""
        return (self.pipeline, self.stage) == (spec.name, key[0]) and self.placement in {None, key[1]}


def followed(autoscaler: Json) -> Followed | None:
    """Return what a HorizontalPodAutoscaler or ScaledObject follows; None if it sets replicas by anything else too.

    The HorizontalPodAutoscaler that KEDA makes for a ScaledObject does not show what it follows.
    """
    spec = autoscaler.get("spec") or {}
    found = {
        *(_of_trigger(trigger) for trigger in spec.get("triggers") or ()),
        *(_of_metric(metric) for metric in spec.get("metrics") or ()),
    }
    return found.pop() if len(found) == 1 else None


def _of_trigger(trigger: Json) -> Followed | None:
    metadata = trigger.get("metadata") or {}
    if trigger.get("metricType", "AverageValue") != "AverageValue":
        return None
    match trigger.get("type"):
        case "external" | "external-push":
            return _followed(metadata)
        case "prometheus" if _is_one(metadata.get("threshold")):
            return _of_query(metadata.get("query") or "")
    return None


def _of_metric(metric: Json) -> Followed | None:
    external = metric.get("external") or {}
    source, target = external.get("metric") or {}, external.get("target") or {}
    selector = source.get("selector") or {}
    if source.get("name") != METRIC or not _is_one(target.get("averageValue")) or selector.get("matchExpressions"):
        return None
    return _followed(selector.get("matchLabels") or {})


def _of_query(query: str) -> Followed | None:
    """Return what `query` selects: the metric with equality matchers, alone or as its maximum."""
    if len(query) > _MOST_CHARACTERS:
        return None
    found = _QUERY.fullmatch(" ".join(query.split()))
    parts = [part.strip() for part in found["matchers"].split(",")] if found else []
    matchers = [_MATCHER.fullmatch(part) for part in parts if part]
    return _followed({matcher[1]: matcher[3] for matcher in matchers if matcher}) if all(matchers) else None


def _followed(names: Json) -> Followed | None:
    pipeline, stage = names.get("pipeline"), names.get("stage")
    if not pipeline or not stage:
        return None
    return Followed(pipeline=str(pipeline), stage=str(stage), placement=names.get("pool"))


def _is_one(value: object) -> bool:
    """Return whether a target is one per replica; a quantity may also be written in thousandths."""
    return str(value) in {"1", "1.0", "1000m"}
