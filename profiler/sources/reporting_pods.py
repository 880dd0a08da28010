"""Which pods of a placement report: the queries that show it, and what follows from their results. Pure.

The queries are the same for all placements that are read by one preset, over one window, with the same labels. What
follows from the results is worked out once for each placement: a large fleet has a hundred thousand readings.
"""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, cached_property

from profiler.samples import (
    DEFAULT_LABELS,
    SILENT_S,
    UNKNOWN_SCRAPES,
    Absence,
    PlacementTarget,
    Scrapes,
    SeriesLabels,
)
from profiler.sources.base import QueryKind
from profiler.sources.combine import Buckets, Pod, Reporting, reporting, summed_buckets
from profiler.sources.metric_names import renamed_series
from profiler.sources.models import chosen_models
from profiler.sources.presets import Preset
from profiler.sources.promql import PodSeries, fill, of_models, pod_models, relabelled

_OF_HISTOGRAM = re.compile(r"sum by \(([^)]*)\) \(rate\((\S+)_(bucket|sum|count)(\{\$pods\}\[\$window\])\)\)")
_AGGREGATIONS = re.compile(r"\b(\w+)\s+by\s*\(", re.IGNORECASE)
_SERVERS = "prometheus, prometheus_replica, receive_replica, replica"
"""Labels that tell the Prometheus servers of a pair apart: Prometheus Operator's, Thanos' and the usual ones."""
_COUNTED_S = 300.0
"""Time in which scrapes are counted. It is that for which a sample is the value of its series."""
_MAX_AGE_SCRAPES = 3
"""Scrape intervals after which a sample is stale: two scrapes may fail."""
_LEAST_MAX_AGE_S = 15.0
"""Age at which samples are not stale yet if the window allows it: a busy server scrapes and answers late."""
_SHOWN = 3
_NONE, _EXPORTED = "none", "exported"
_MAX_AGE_SHARE = 0.75
"""Greatest age of the newest sample, as a share of the window. A window of four scrape intervals is recommended, and
two samples are enough for a rate."""
_USUAL_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0)

PodResults = Mapping[str, PodSeries | Absence]
"""For every query over pods its result with the series by pod, or the `Absence` in its place."""


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties need a __dict__
class PodQueries:
    """The queries about the pods of all placements that are read alike.

    With `checks`, they show which pods are scraped twice, how often, and which are silent for long. `matchers` select
    the series of the fleet's pods, which have `labels`.
    """

    preset: Preset
    labels: SeriesLabels
    matchers: str
    window_s: float
    checks: bool

    def fill(self, template: str) -> str:
        """Return `template` for the pods, labels and window of these placements.

        With `checks`, a rate of a classic histogram is asked for together with the native one that may be in its place.
        Scrapes of pods give classic ones only.
        """
        histogram = _OF_HISTOGRAM.fullmatch(template) if self.checks else None
        if histogram is not None and histogram[2] in self._histograms:
            by = re.sub(r",?\s*\ble\b", "", histogram[1])
            template = f"{template} or sum by ({by}) (rate({histogram[2]}{histogram[4]}))"
        own = template if self.labels == DEFAULT_LABELS else relabelled(template, self.labels)
        return fill(own, pods=self.matchers, window_s=self.window_s)

    def missing_histogram(self, template: str) -> str:
        """Return which series were looked for where `template` of a histogram has none."""
        name = template.partition("(rate(")[2].partition("_bucket{")[0]
        native = f", and no native histogram {name}" if self.checks else " (scrapes of pods give no native histograms)"
        return f"no series {name}_bucket{native}"

    @cached_property
    def _histograms(self) -> frozenset[str]:
        formulas = (*self.preset.formulas.values(), *self.preset.first.values())
        found = (_OF_HISTOGRAM.fullmatch(formula.value) for formula in formulas)
        return frozenset(match[2] for match in found if match is not None and match[3] != "count")

    @cached_property
    def ages(self) -> str:
        """Return the query for the ages of the newest samples, by pod and model."""
        model = "" if self.preset.model_label is None else f", {self.preset.model_label}"
        return self.fill(f"time() - max by (namespace, pod{model}) (timestamp({self.preset.freshness}{{$pods}}))")

    @cached_property
    def copies(self) -> str:
        """Return the query for how often each pod is scraped, at one address by several jobs or Prometheus servers.

        Only series with a sample in the last half of the window count: a server that has gone must not halve the
        numbers of another while its own leave the window.
        """
        recent = f"timestamp({self.preset.freshness}{{$pods}}) > time() - {self.window_s / 2:g}"
        jobs = f"count by (namespace, pod, instance, job, {_SERVERS}) ({recent})"
        return self.fill(f"max by (namespace, pod) (count by (namespace, pod, instance) ({jobs}))")

    @cached_property
    def lately(self) -> str:
        """Return the query for the pods without a present sample that had one in the last `SILENT_S`."""
        name = f"{self.preset.freshness}{{$pods}}"
        had = f"max by (namespace, pod) (present_over_time({name}[{SILENT_S:.0f}s]))"
        return self.fill(f"{had} unless max by (namespace, pod) ({name})")

    @cached_property
    def scrapes(self) -> str:
        """Return the query for the samples of each pod in `_COUNTED_S`, for series that are older than that."""
        name = f"{self.preset.freshness}{{$pods}}"
        counted = f"{_COUNTED_S:.0f}s"
        return self.fill(f"max by (namespace, pod) (count_over_time({name}[{counted}]) and {name} offset {counted})")

    @cached_property
    def strangers(self) -> str:
        """Return the query for series without the label of a pod, and for those with one called exported_…."""
        name, labels = self.preset.freshness, self.labels
        return (
            f'label_replace(count({name}{{{labels.pod}=""}}), "found", "{_NONE}", "", "") or '
            f'label_replace(count({name}{{exported_pod!=""}}), "found", "{_EXPORTED}", "", "") or '
            f"(count by (__name__) ({renamed_series(name)}) unless on () count({name}))"
        )

    @cached_property
    def optional(self) -> tuple[str, ...]:
        """Return the queries that readings use if they are answered."""
        return (self.lately, self.scrapes) if self.checks else ()

    @cached_property
    def of_scrapes(self) -> Mapping[str, QueryKind]:
        """Return the queries that show how the pods are scraped, with their kinds."""
        return {
            self.ages: QueryKind.FRESHNESS,
            self.copies: QueryKind.FRESHNESS,
            self.lately: QueryKind.THROUGHPUT,
            self.scrapes: QueryKind.OTHER,
            self.strangers: QueryKind.OTHER,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Which pods of a placement report, and with a model label the model of each."""

    reporting: Reporting
    models: Mapping[Pod, str] | None


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties need a __dict__
class PlacementPods:
    """The pods of one placement, for one read: what follows from its results is kept.

    Samples older than `max_age_s` are stale; None: it follows from the scrapes.
    """

    target: PlacementTarget
    queries: PodQueries
    max_age_s: float | None
    _known: dict[str | None, "Pods | Absence"] = field(default_factory=dict, compare=False)
    _of_model: dict[PodSeries, PodSeries] = field(default_factory=dict, compare=False)
    _summed: dict[PodSeries, Buckets | Absence] = field(default_factory=dict, compare=False)

    @cached_property
    def expected(self) -> frozenset[Pod]:
        """Return the pods that must have samples."""
        return frozenset((self.target.namespace, pod) for pod in self.target.pods)

    def known(
        self, ages_s: PodSeries, optional: Sequence[PodSeries | Absence], model_label: str | None = None
    ) -> Pods | Absence:
        """Return which pods report, from their ages and the results of `optional`, and with `model_label` their models.

        Without a model that can be told for the pods, return the `Absence`.
        """
        found = self._known.get(model_label)
        if found is None:
            found = self._known[model_label] = self._pods(ages_s, optional, model_label)
        return found

    def of_model(self, result: PodSeries, label: str, models: Mapping[Pod, str]) -> PodSeries:
        """Return the series of the placement's pods, except those of another model than the one of their pod."""
        found = self._of_model.get(result)
        if found is None:
            found = self._of_model[result] = PodSeries(of_models(result.of(self.expected), label, models))
        return found

    def summed_buckets(self, pods: Reporting, result: PodSeries) -> Buckets | Absence:
        """Return the sum of the histograms of the pods that report. Several percentiles are read from it."""
        found = self._summed.get(result)
        if found is None:
            found = self._summed[result] = summed_buckets(pods, result.buckets(self.expected))
        return found

    def _pods(
        self, ages_s: PodSeries, optional: Sequence[PodSeries | Absence], model_label: str | None
    ) -> Pods | Absence:
        most_s, known = self.most_age_s(optional), ages_s
        models: Mapping[Pod, str] | None = None
        if model_label is not None:
            own = ages_s.of(self.expected)
            chosen = chosen_models(pod_models(own, model_label, most_s), self.target.model)
            if isinstance(chosen, Absence):
                return chosen
            models, known = chosen, PodSeries(of_models(own, model_label, chosen))
        found = reporting(self.expected, known.ages(self.expected), most_s, self._long_silent(optional))
        return Pods(reporting=found, models=models)

    def interval_s(self, optional: Sequence[PodSeries | Absence]) -> float | None:
        """Return the observed time between two scrapes, None where it is not known."""
        match optional:
            case [_, PodSeries() as scrapes] if counts := scrapes.values(self.expected):
                return usual_interval_s(_COUNTED_S / max(counts.values()))
        return None

    def _long_silent(self, optional: Sequence[PodSeries | Absence]) -> set[Pod]:
        match optional:
            case [PodSeries() as lately, _]:
                ready = {(self.target.namespace, pod) for pod in self.target.long_ready}
                return ready - lately.values(ready).keys()
        return set()

    def most_age_s(self, optional: Sequence[PodSeries | Absence]) -> float:
        """Return the greatest age of a sample in use: three scrape intervals, or as the window says if unknown."""
        of_window_s = self.target.window_s * _MAX_AGE_SHARE
        if self.max_age_s is not None:
            return min(of_window_s, self.max_age_s)
        interval_s = self.interval_s(optional)
        if interval_s is None:
            return of_window_s
        return max(_MAX_AGE_SCRAPES * interval_s, min(of_window_s, _LEAST_MAX_AGE_S))

    def scrapes(self, results: PodResults) -> Scrapes:
        """Return how the pods are scraped, by the results of `PodQueries.of_scrapes`; nothing without their ages."""
        queries, expected = self.queries, self.expected
        ages_s, copies = results[queries.ages], results[queries.copies]
        if isinstance(ages_s, Absence):
            return UNKNOWN_SCRAPES
        optional = [results[query] for query in queries.optional]
        found = self.known(ages_s, optional)
        assert isinstance(found, Pods)
        pods = found.reporting
        twice = {} if isinstance(copies, Absence) else copies.repeated(expected)
        return Scrapes(
            interval_s=self.interval_s(optional),
            duplicated=tuple(sorted(pod for _, pod in twice)),
            silent=tuple(sorted(pod for _, pod in expected - pods.fresh)),
            excused=tuple(sorted(pod for _, pod in pods.excused)),
            unlabelled="" if pods.fresh or pods.stale else unlabelled(queries, results[queries.strangers]),
        )


def usual_interval_s(interval_s: float) -> float:
    """Return the usual scrape interval that `interval_s` is within an eighth of, else `interval_s`."""
    nearest = min(_USUAL_S, key=lambda usual: abs(usual - interval_s))
    return nearest if abs(nearest - interval_s) <= nearest / 8 else interval_s


def unlabelled(queries: PodQueries, strangers: PodSeries | Absence) -> str:
    """Return why no series has the name of a pod of a placement, if there are series of other pods or of none."""
    if isinstance(strangers, Absence):
        return ""
    labels, name = queries.labels, queries.preset.freshness
    found = {series["metric"].get("found") for series in strangers.result if isinstance(series, dict)}
    if _EXPORTED in found and labels.pod != "exported_pod":
        return (
            f"{name} has its pods in the label exported_pod: set metrics.labels (pod: exported_pod, namespace: "
            "exported_namespace), --pod-label and --namespace-label, or honorLabels in the scrape job"
        )
    if _NONE in found:
        return (
            f"series of {name} have no label {labels.pod}: let the scrape job add it, or name the label that has "
            "the pod in metrics.labels or --pod-label"
        )
    names = {series["metric"].get("__name__") for series in strangers.result if isinstance(series, dict)}
    if renamed := sorted(str(each) for each in names if each):
        return renamed_words(queries.preset.name, name, renamed)
    return ""


def renamed_words(preset: str, name: str, found: Sequence[str]) -> str:
    """Return that the metrics of `preset` have other names: there is no series `name`, but those `found`."""
    return (
        f"no series {name}, for which preset {preset} looks; there is {', '.join(found[:_SHOWN])}: if a collector "
        "renames the metrics, let it keep the names, or set metrics.preset to one of your own with the new names"
    )


def once(values: PodSeries, copies: PodSeries | None, template: str, pods: Set[Pod]) -> Mapping[Pod, float]:
    """Return the values of `pods`, each counted once although its pod is scraped as often as `copies` has.

    Only `sum` adds copies up: a `max` or `avg` over them is that of one. The result may have other pods too.
    """
    several = {} if copies is None or not _adds_up(template) else copies.repeated(pods)
    if not several:
        return values.all_values
    own = values.values(pods)
    return own | {pod: own[pod] / count for pod, count in several.items() if pod in own}


@cache
def _adds_up(template: str) -> bool:
    return set(map(str.lower, _AGGREGATIONS.findall(template))) == {"sum"}
