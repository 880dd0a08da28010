"""The sessions of single pods, the models of servers, and the number of queries."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from optimizer.model import PipelineKey, PoolName, StageName, pool_of
from profiler.samples import (
    Absence,
    AbsenceReason,
    AtLeast,
    DeviceFault,
    DeviceQuantity,
    PlacementSamples,
    PlacementTarget,
    PodEndpoint,
    Quantity,
    SeriesLabels,
)
from profiler.sources.base import QueryKind, ReadRequest
from profiler.sources.device_queries import PlannedDevices
from profiler.sources.history import TargetHistory
from profiler.sources.presets import PresetFiles
from profiler.sources.promql_evaluation import Evaluation
from profiler.sources.promql_syntax import UnsupportedQuery, parse
from profiler.sources.queries import QueryPlan, query_plan

PLACEMENT = (PipelineKey("speech/captions"), StageName("asr"), PoolName("gpu"))
TARGET = PlacementTarget(
    pipeline=PLACEMENT[0],
    stage=PLACEMENT[1],
    placement=PLACEMENT[2],
    namespace="speech",
    pods=frozenset({"old", "stale", "silent", "odd"}),
    preset="generic",
    window_s=60.0,
    concurrency=1,
    batch_limit=1,
    overrides={},
    endpoints={"young": PodEndpoint(host="10.0.0.1")},
)
PRESETS = PresetFiles().load()
AGES_S = {"old": "1", "young": "1", "odd": "1", "silent": "1", "stale": "50", "foreign": "1"}
SESSIONS = {"old": "7", "young": "2", "odd": "NaN", "stale": "9", "foreign": "1"}


def series(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"metric": {"namespace": "speech", "pod": pod}, "value": [1.0, value]} for pod, value in values.items()]


def planned(target: PlacementTarget = TARGET) -> QueryPlan:
    return query_plan(ReadRequest(placements=(target,), scalars={}, deadline_s=1.0), PRESETS)


def answers(found: QueryPlan) -> dict[str, Any]:
    ages, sessions = found.placements[PLACEMENT].readings[Quantity.SESSIONS].queries
    return {**{key: [] for key in found.pod_queries()}, ages: series(AGES_S), sessions: series(SESSIONS)}


def test_pods_with_recent_samples_have_sessions_and_so_have_young_ones() -> None:
    found = planned()
    answer = found.answer(answers(found), {}, {})
    assert answer.placements[PLACEMENT].sessions == {"old": 7.0, "young": 2.0}


def test_a_back_end_that_does_not_answer_has_no_sessions_of_single_pods() -> None:
    found = planned()
    gone = dict.fromkeys(found.pod_queries(), Absence(reason=AbsenceReason.UNAVAILABLE))
    assert found.answer(gone, {}, {}).placements[PLACEMENT].sessions == {}


def test_an_override_has_no_sessions_of_single_pods() -> None:
    assert planned(replace(TARGET, overrides={Quantity.SESSIONS: "sum(mine)"})).placements[PLACEMENT].sessions is None


def of_models(pods: Mapping[str, Mapping[str, str]], **labels: str) -> list[dict[str, Any]]:
    """Return one series per pod and model, as `{pod: {model: value}}`."""
    return [
        {"metric": {"namespace": "speech", "pod": pod, "model": model, **labels}, "value": [1.0, value]}
        for pod, models in pods.items()
        for model, value in models.items()
    ]


def completions(ages_s: Mapping[str, Mapping[str, str]], rates: Mapping[str, Mapping[str, str]], **target: Any) -> Any:
    """Return the completions of a Triton stage whose pods report models of these ages and rates."""
    found = planned(replace(TARGET, pods=frozenset(ages_s), preset="triton", **target))
    ages, value = found.placements[PLACEMENT].readings[Quantity.COMPLETION_RATE].queries
    results = {**{query: [] for query in found.pod_queries()}, ages: of_models(ages_s), value: of_models(rates)}
    return found.answer(results, {}, {}).placements[PLACEMENT].of(Quantity.COMPLETION_RATE)


def test_only_requests_of_the_selected_model_count() -> None:
    both = {"asr-0": {"ensemble": "1", "encoder": "1"}}
    rates = {"asr-0": {"ensemble": "10", "encoder": "40"}}
    assert completions(both, rates, model="ensemble") == 10.0
    assert completions(both, rates, model="encoder") == 40.0
    assert isinstance(completions(both, rates), Absence)


def test_a_model_that_was_unloaded_does_not_make_the_other_ambiguous() -> None:
    """The rate of a model that is gone lasts until its samples have left the window."""
    ages, rates = {"asr-0": {"v2": "1", "v1": "50"}}, {"asr-0": {"v2": "10", "v1": "3"}}
    assert completions(ages, rates) == 10.0


def test_pods_that_do_not_report_any_more_are_stale_and_not_without_the_model() -> None:
    for model in (None, "asr"):
        absence = completions({"asr-0": {"asr": "50"}}, {"asr-0": {"asr": "3"}}, model=model)
        assert isinstance(absence, Absence)
        assert absence.reason is AbsenceReason.STALE


def test_stages_with_different_models_share_their_queries() -> None:
    targets = tuple(
        replace(TARGET, stage=StageName(name), preset="triton", model=name) for name in ("ensemble", "encoder", "lm")
    )
    one = query_plan(ReadRequest(placements=targets[:1], scalars={}, deadline_s=1.0), PRESETS)
    all_three = query_plan(ReadRequest(placements=targets, scalars={}, deadline_s=1.0), PRESETS)
    assert all_three.pod_queries() == one.pod_queries()


def test_a_service_time_of_zero_is_absent() -> None:
    """As of an ensemble whose steps report no compute time."""
    found = planned(replace(TARGET, pods=frozenset({"asr-0"}), preset="triton"))
    _, compute, _ = found.placements[PLACEMENT].readings[Quantity.SERVICE_TIME].queries
    results = {query: of_models({"asr-0": {"ensemble": "10"}}) for query in found.pod_queries()}
    results[compute] = of_models({"asr-0": {"ensemble": "0"}})
    reading = found.answer(results, {}, {}).placements[PLACEMENT].of(Quantity.SERVICE_TIME)
    assert reading == Absence(reason=AbsenceReason.UNSUPPORTED, detail="the server reports 0 for every item")


def test_engines_of_a_pod_are_counted_and_share_its_requests() -> None:
    """vLLM with data parallelism: several engines in a pod, each with a batch of its own, in one exposition."""
    target = replace(TARGET, pods=frozenset({"asr-0"}), preset="vllm", batch_limit=16, concurrency=2)
    history = TargetHistory({"namespace": "speech", "pod": "asr-0", "instance": "10.0.0.1:8000", "job": "vllm"})
    for index in range(13):
        own = [("vllm:num_requests_running", {"engine": str(n), "model_name": "m"}, 8.0) for n in range(2)]
        history.record(5.0 * index, own, 300.0)
    evaluation = Evaluation([history], at_s=60.0, lookback_s=300.0)
    found = planned(target)
    results: dict[str, Any] = {}
    for query in found.pod_queries():
        with suppress(UnsupportedQuery):
            results[query] = evaluation.result(parse(query))
    results = {**{query: [] for query in found.pod_queries()}, **results}
    samples = found.answer(results, {}, {}).placements[PLACEMENT]
    read = {each: samples.of(each) for each in (Quantity.ENGINES, Quantity.BATCH_SIZE, Quantity.UTILIZATION)}
    assert read == {Quantity.ENGINES: 2.0, Quantity.BATCH_SIZE: 8.0, Quantity.UTILIZATION: 0.5}


def devices_of(plan: QueryPlan) -> PlannedDevices:
    found = plan.placements[PLACEMENT].devices
    assert found is not None
    return found


class TestDevices:
    def planned(
        self, device: str | None = "GPU", labels: SeriesLabels | None = None, shared: frozenset[str] = frozenset()
    ) -> QueryPlan:
        target = replace(TARGET, pods=frozenset({"a", "b", "c", "d"}), labels=labels)
        devices = {} if device is None else {PLACEMENT[2]: device}
        sharing = {("speech", pod) for pod in shared}
        request = ReadRequest(placements=(target,), scalars={}, deadline_s=1.0, devices=devices, sharing=sharing)
        return query_plan(request, PRESETS)

    def read(
        self, values: Mapping[DeviceQuantity, Mapping[str, str] | Absence], shared: frozenset[str] = frozenset()
    ) -> PlacementSamples:
        found = self.planned(shared=shared)
        results: dict[str, Any] = {query: [] for query in found.pod_queries()}
        for quantity, own in values.items():
            query, _ = devices_of(found).formulas[quantity]
            results[query] = own if isinstance(own, Absence) else series(own)
        return found.answer(results, {}, {}).placements[PLACEMENT]

    def test_a_placement_without_a_known_device_has_no_queries(self) -> None:
        assert self.planned(None).placements[PLACEMENT].devices is None
        assert self.planned(None).device_queries() == set()

    def test_placements_on_pools_of_one_device_share_their_queries(self) -> None:
        other = replace(TARGET, stage=StageName("vad"), placement=PoolName("gpu-spot"), preset="triton")
        devices = {pool_of(TARGET.placement): "GPU", pool_of(other.placement): "GPU"}
        request = ReadRequest(placements=(TARGET, other), scalars={}, deadline_s=1.0, devices=devices)
        found = query_plan(request, PRESETS)
        first, second = (own.devices for own in found.placements.values())
        assert first is second
        assert found.device_queries() == self.planned().device_queries()

    def test_the_queries_are_sent_after_all_others(self) -> None:
        found = self.planned()
        assert found.device_queries() <= found.pod_queries()
        assert {found.kinds()[query] for query in found.device_queries()} == {QueryKind.OTHER}

    def test_the_readings_are_combined_over_the_pods(self) -> None:
        devices = self.read({DeviceQuantity.UTILIZATION: {"a": "0.2", "b": "0.4", "c": "0.9", "foreign": "1"}}).devices
        assert devices[DeviceQuantity.UTILIZATION] == 0.5

    def test_too_few_pods_are_partial_and_none_is_missing(self) -> None:
        devices = self.read({DeviceQuantity.UTILIZATION: {"a": "0.2"}}).devices
        few, none = devices[DeviceQuantity.UTILIZATION], devices[DeviceQuantity.MEMORY_BYTES]
        assert isinstance(few, Absence)
        assert few.reason is AbsenceReason.PARTIAL
        assert isinstance(none, Absence)
        assert none.reason is AbsenceReason.MISSING

    def test_the_use_of_a_shared_device_is_of_no_pod_but_its_errors_count(self) -> None:
        """With time slicing the exporter names one of the pods, or that of another workload."""
        one, both = frozenset({"a"}), frozenset({"a", "b", "c", "d"})
        named = {"a": "0.9", "foreign": "0.8"}
        values = {
            DeviceQuantity.UTILIZATION: named,
            DeviceQuantity.ERRORS: {"a": "2"},
            DeviceQuantity.RX_PACKETS_RPS: dict.fromkeys("abcd", "10"),
        }
        found = self.read(values, shared=both)
        use, errors = found.devices[DeviceQuantity.UTILIZATION], found.devices[DeviceQuantity.ERRORS]
        assert isinstance(use, Absence)
        assert (use.reason, "share their devices" in use.detail) == (AbsenceReason.UNSUPPORTED, True)
        assert errors == 2.0
        assert found.device_faults == {"a": DeviceFault(errors=2.0)}
        assert found.devices[DeviceQuantity.RX_PACKETS_RPS] == 40.0, "the network is of each pod"
        others = {DeviceQuantity.UTILIZATION: {"a": "0.9", "b": "0.2", "c": "0.3", "d": "0.4"}}
        assert self.read(others, shared=one).devices[DeviceQuantity.UTILIZATION] == pytest.approx(0.3)

    def test_what_the_back_end_does_not_answer_is_absent(self) -> None:
        away = Absence(reason=AbsenceReason.UNAVAILABLE)
        samples = self.read({DeviceQuantity.UTILIZATION: away, DeviceQuantity.ERRORS: away})
        assert samples.devices[DeviceQuantity.UTILIZATION] == away
        assert samples.device_faults == {}

    def test_faults_are_those_of_single_pods(self) -> None:
        samples = self.read(
            {
                DeviceQuantity.ERRORS: {"a": "0", "b": "2", "foreign": "9", "c": "NaN"},
                DeviceQuantity.THROTTLED: {"a": "0.01", "b": "0", "d": "0.5"},
            }
        )
        assert samples.device_faults == {"b": DeviceFault(errors=2.0), "d": DeviceFault(throttled=0.5)}

    def test_labels_of_the_servers_do_not_rename_those_of_the_exporters(self) -> None:
        own = self.planned(labels=SeriesLabels(pod="exported_pod", match=(("cluster", "eu-1"),)))
        assert all('cluster="eu-1"' in query for query in own.device_queries())
        query, _ = devices_of(own).formulas[DeviceQuantity.UTILIZATION]
        results: dict[str, Any] = {each: [] for each in own.pod_queries()} | {
            query: series({"a": "0.5", "b": "0.5", "c": "0.5", "d": "0.5"})
        }
        devices = own.answer(results, {}, {}).placements[PLACEMENT].devices
        assert devices[DeviceQuantity.UTILIZATION] == 0.5


class TestUsersHistograms:
    """PromQL's histogram_quantile() gives the last finite bound for each quantile in the bucket up to infinity."""

    QUERY = "histogram_quantile(0.95, sum by (le) (rate(x_bucket[1m])))"
    TOP = "histogram_quantile(1, sum by (le) (rate(x_bucket[1m])))"

    def read(self, query: str, results: Mapping[str, str]) -> Any:
        request = ReadRequest(
            placements=(), scalars={"sla": query}, scalar_kinds={"sla": QueryKind.LATENCY}, deadline_s=1.0
        )
        plan = query_plan(request, PRESETS)
        assert plan.user_queries() == results.keys()
        one_series = {own: [{"metric": {}, "value": [1.0, value]}] for own, value in results.items()}
        return plan.answer({}, one_series, {}).scalars["sla"]

    def test_a_quantile_at_the_last_bound_is_at_least_that(self) -> None:
        found = self.read(self.QUERY, {self.QUERY: "1", self.TOP: "1"})
        assert (found, type(found)) == (1.0, AtLeast)

    def test_a_quantile_within_a_bucket_is_a_number(self) -> None:
        assert type(self.read(self.QUERY, {self.QUERY: "0.9", self.TOP: "1"})) is float

    def test_without_the_second_answer_nothing_is_claimed(self) -> None:
        assert isinstance(self.read(self.QUERY, {self.QUERY: "1", self.TOP: "NaN"}), Absence)

    @pytest.mark.parametrize(("beyond", "kind"), [(50.0, AtLeast), (0.0, float)])
    def test_scraped_histograms_are_judged_alike(self, beyond: float, kind: type[float]) -> None:
        history = TargetHistory({"instance": "ingress"})
        for index in range(3):
            counts = {"0.5": 10.0 * index, "1": 95.0 * index, "2": 100.0 * index, "+Inf": (100.0 + beyond) * index}
            history.record(20.0 * index, [("x_bucket", {"le": le}, count) for le, count in counts.items()], 300.0)
        evaluation = Evaluation([history], at_s=40.0, lookback_s=300.0)
        request = ReadRequest(
            placements=(), scalars={"sla": self.QUERY}, scalar_kinds={"sla": QueryKind.LATENCY}, deadline_s=1.0
        )
        plan = query_plan(request, PRESETS)
        results = {query: evaluation.result(parse(query)) for query in plan.user_queries()}
        found = plan.answer({}, results, {}).scalars["sla"]
        assert type(found) is kind
        assert found == (2.0 if beyond else 1.0)

    def test_nothing_is_waited_for_where_it_is_not_needed(self) -> None:
        for query in ("max(x)", "histogram_quantile(1, x)", "max(x) or histogram_quantile(0.9, y)"):
            assert type(self.read(query, {query: "1"})) is float

    def test_no_traffic_is_not_above_a_bound(self) -> None:
        query, top = (f"histogram_quantile({share}, x) > 0 or vector(0)" for share in ("0.9", "1"))
        assert type(self.read(query, {query: "0", top: "0"})) is float

    def test_the_users_own_percentile_of_a_stage_is_compared_as_well(self) -> None:
        for quantity in (Quantity.LATENCY_P95, Quantity.LATENCY_P99):
            plan = planned(replace(TARGET, overrides={quantity: self.QUERY}))
            results: dict[str, Any] = {key: [] for key in plan.pod_queries()}
            for query in (self.QUERY, self.TOP):
                results[query] = [{"metric": {}, "value": [1.0, "1"]}]
            assert isinstance(plan.answer(results, {}, {}).placements[PLACEMENT].of(quantity), AtLeast)


# What Prometheus 3.15 answers where a target has native histograms only; numbers shortened.
NATIVE = [
    {
        "metric": {"namespace": "speech", "pod": "old"},
        "histogram": [
            1795725327.143,
            {"count": "4", "sum": "1", "buckets": [[0, "0.125", "0.25", "2"], [0, "0.25", "0.5", "2"]]},
        ],
    },
    {
        "metric": {"namespace": "speech", "pod": "young"},
        "histogram": [
            1795725327.143,
            {"count": "12", "sum": "4", "buckets": [[0, "0.0625", "0.125", "8"], [3, "0.5", "1", "4"]]},
        ],
    },
]
BUCKETS = (
    'sum by (namespace, pod, le) (rate(speech_stage_latency_seconds_bucket{namespace=~"speech"}[60000ms])) or '
    'sum by (namespace, pod) (rate(speech_stage_latency_seconds{namespace=~"speech"}[60000ms]))'
)


class TestNativeHistograms:
    def read(self, *native: Mapping[str, Any], pods: frozenset[str] = frozenset({"old", "young"})) -> Any:
        target = replace(TARGET, pods=pods, endpoints={})
        request = ReadRequest(placements=(target,), scalars={}, deadline_s=1.0)
        plan = query_plan(request, PRESETS, checks=True)
        queries = plan.pod_queries()
        assert BUCKETS in queries
        results: dict[str, Any] = {query: [] for query in queries}
        for query in queries:
            if query.startswith("time() - max"):
                results[query] = series(dict.fromkeys(sorted(pods), "1"))
            elif "latency_seconds" in query:
                results[query] = list(native)
        return plan.answer(results, {}, {}).placements[PLACEMENT]

    def test_percentiles_and_means_are_read_of_what_prometheus_has(self) -> None:
        found = self.read(*NATIVE)
        assert found.of(Quantity.LATENCY_MEAN) == 5 / 16
        assert found.of(Quantity.LATENCY_P95) == 0.5 + 0.5 * (0.95 * 16 - 12) / 4
        assert found.of(Quantity.LATENCY_P95_FLOOR) == 0.5
        assert found.of(Quantity.LATENCY_P95_CEILING) == 1.0

    def test_what_is_in_the_last_bucket_is_at_least_its_lower_bound(self) -> None:
        overflow = {"count": "4", "sum": "40", "buckets": [[0, "1", "2", "1"], [0, "2", "+Inf", "3"]]}
        own = {"metric": NATIVE[0]["metric"], "histogram": [1.0, overflow]}
        found = self.read(own, pods=frozenset({"old"})).of(Quantity.LATENCY_P95)
        assert (found, type(found)) == (2.0, AtLeast)

    def test_a_classic_histogram_beside_it_is_the_one_that_counts(self) -> None:
        classic = [
            {"metric": {"namespace": "speech", "pod": "old", "le": bound}, "value": [1.0, rate]}
            for bound, rate in (("0.1", "0"), ("0.3", "4"), ("+Inf", "4"))
        ]
        found = self.read(*classic, NATIVE[0], pods=frozenset({"old"}))
        assert found.of(Quantity.LATENCY_P95_CEILING) == 0.3

    def test_classic_and_native_pods_are_read_together(self) -> None:
        classic = [
            {"metric": {"namespace": "speech", "pod": "old", "le": bound}, "value": [1.0, rate]}
            for bound, rate in (("0.25", "0"), ("1", "4"), ("+Inf", "4"))
        ]
        assert self.read(*classic, NATIVE[1]).of(Quantity.LATENCY_P95_CEILING) == 1.0

    def test_where_neither_exists_the_message_names_both(self) -> None:
        absence = self.read().of(Quantity.LATENCY_P95)
        assert isinstance(absence, Absence)
        names = "no series speech_stage_latency_seconds_bucket, and no native histogram speech_stage_latency_seconds"
        assert names in absence.detail

    def test_what_is_no_histogram_is_not_a_number(self) -> None:
        for odd in ([], [1.0], [1.0, "x"], [1.0, {"count": "x", "buckets": [1, [0, "1"]]}]):
            found = self.read({"metric": NATIVE[0]["metric"], "histogram": odd}, pods=frozenset({"old"}))
            assert isinstance(found.of(Quantity.LATENCY_P95), Absence)
            assert isinstance(found.of(Quantity.LATENCY_MEAN), Absence)
