"""What queries give for scraped samples. That Prometheus gives the same is in `tests/integration/profiler`."""

import math
from collections.abc import Mapping, Sequence

import pytest

from profiler.sources.exposition import MOST_SERIES
from profiler.sources.history import MOST_SAMPLES, TargetHistory
from profiler.sources.promql_evaluation import Evaluation, increase
from profiler.sources.promql_syntax import UnsupportedQuery, parse

NOW_S = 1000.0


def a_target(pod: str, values: Mapping[str, Sequence[float]], step_s: float = 10.0, **labels: str) -> TargetHistory:
    """One sample of each metric every `step_s`, the last one now."""
    target = TargetHistory({"namespace": "speech", "pod": pod})
    length = max(len(each) for each in values.values())
    for index in range(length):
        at_s = NOW_S - (length - 1 - index) * step_s
        target.record(at_s, [(name, labels, each[index]) for name, each in values.items() if index < len(each)], 600.0)
    return target


def ask(query: str, *targets: TargetHistory, at_s: float = NOW_S, lookback_s: float = 30.0) -> dict[str, float]:
    """Return the values by pod; of a number under the empty name."""
    result = Evaluation(targets, at_s=at_s, lookback_s=lookback_s).result(parse(query))
    if result and not isinstance(result[0], dict):
        return {"": float(result[1])}
    return {series["metric"].get("pod", "-"): series["value"][1] for series in result}


STEADY = a_target("a", {"x_total": [0, 100, 200, 300, 400, 500, 600], "g": [1, 2, 3, 4, 5, 6, 7]})
SLOW = a_target("b", {"x_total": [0, 10, 20, 30, 40, 50, 60], "g": [5] * 7})


def test_a_selector_gives_the_newest_sample_unless_it_is_too_old() -> None:
    assert ask("g", STEADY, SLOW) == {"a": 7, "b": 5}
    assert ask('g{pod="a"}', STEADY, SLOW) == {"a": 7}
    assert ask('g{pod=~"b|c"}', STEADY, SLOW) == {"b": 5}
    assert ask('g{pod!~"b|c",namespace!="other"}', STEADY, SLOW) == {"a": 7}
    assert ask("g", STEADY, at_s=NOW_S + 31) == {}


def test_a_rate_is_per_second_over_the_window() -> None:
    assert ask("rate(x_total[1m])", STEADY, SLOW) == pytest.approx({"a": 10.0, "b": 1.0})
    assert ask("increase(x_total[1m])", STEADY) == pytest.approx({"a": 600.0})


def test_one_sample_is_no_rate() -> None:
    assert ask("rate(x_total[5s])", STEADY) == {}


def test_a_counter_that_restarts_gives_no_negative_and_no_huge_rate() -> None:
    restarted = a_target("a", {"x_total": [5000, 5100, 5200, 0, 100, 200, 300]})
    (rate,) = ask("rate(x_total[1m])", restarted).values()
    assert 7 < rate < 11


def test_a_rate_is_carried_on_to_the_ends_of_the_window_by_half_an_interval_at_most() -> None:
    assert increase([20.0, 30.0, 40.0], [1000.0, 1100.0, 1200.0], -20.0, 40.0) == pytest.approx(250.0)
    assert increase([20.0, 30.0, 40.0], [1000.0, 1100.0, 1200.0], -20.0, 100.0) == pytest.approx(300.0)
    assert increase([0.0, 10.0], [0.0, 5.0], -100.0, 10.0) == 5.0  # never to below zero


def test_the_time_before_a_series_was_seen_is_not_taken_for_idle() -> None:
    assert ask("rate(x_total[1m])", a_target("a", {"x_total": [1000, 1100, 1200]})) == pytest.approx({"a": 10.0})


def test_gauges_are_averaged_and_their_slope_is_per_second() -> None:
    assert ask("avg_over_time(g[1m])", STEADY) == pytest.approx({"a": 4.5})
    assert ask("max_over_time(g[1m])", STEADY) == {"a": 7}
    assert ask("deriv(g[1m])", STEADY) == pytest.approx({"a": 0.1})


def test_a_subquery_samples_at_whole_steps_and_the_last_sample_stands() -> None:
    assert ask("avg_over_time((g > bool 6)[20s:5s])", STEADY) == pytest.approx({"a": 0.25})


def test_subqueries_that_look_at_too_much_are_refused_and_what_others_ask_is_answered() -> None:
    many = a_target("a", {"g": [1.0] * 100})
    pods = [many, *(a_target(f"p{index}", {"g": [1.0] * 100}) for index in range(10))]
    evaluation = Evaluation(pods, at_s=NOW_S, lookback_s=30.0)
    for query in ("max_over_time(max_over_time(g[10m])[1000s:100ms])", "max_over_time(rate(g[10m])[1000s:100ms])"):
        with pytest.raises(UnsupportedQuery, match="subqueries: their steps look at more than 1000000"):
            evaluation.result(parse(query))
        assert len(evaluation.result(parse("max_over_time(max_over_time(g[10m])[60s:1s])"))) == 11


def test_sums_are_over_pods_and_keep_the_labels_asked_for() -> None:
    assert ask("sum(g)", STEADY, SLOW) == {"-": 12}
    assert ask("sum by (namespace, pod) (g)", STEADY, SLOW) == {"a": 7, "b": 5}
    assert ask("max(g) - min(g)", STEADY, SLOW) == {"-": 2}
    assert ask("avg(g) / count(g)", STEADY, SLOW) == {"-": 3}
    assert ask("sum(nothing)", STEADY) == {}


def test_arithmetic_joins_series_that_are_alike() -> None:
    assert ask("g * 2 + g ^ 2", STEADY) == {"a": 63}
    assert ask("g + h", STEADY) == {}
    assert ask("g or h", STEADY) == {"a": 7}
    assert ask("clamp_min(g, 10) + clamp_max(g, 1)", STEADY) == {"a": 11}
    assert ask("g > 6", STEADY, SLOW) == {"a": 7}
    assert ask("2 + 3 * 4", STEADY) == {"": 14}


def test_a_division_by_zero_is_no_number() -> None:
    idle = a_target("a", {"g": [0.0]})
    assert math.isnan(ask("g / g", idle)["a"])
    assert ask("1 / g", idle) == {"a": math.inf}
    assert math.isnan(ask("sum(g / 0 - 1 / g)", idle)["-"])


def test_a_quantile_is_interpolated_in_its_bucket() -> None:
    target = TargetHistory({"pod": "a"})
    for at_s, count in ((NOW_S - 10, 0.0), (NOW_S, 100.0)):
        counts = {"0.1": 0.5 * count, "0.2": count, "+Inf": count}
        target.record(at_s, [("x_bucket", {"le": bound}, value) for bound, value in counts.items()], 60.0)
    query = "histogram_quantile(0.75, sum by (le) (rate(x_bucket[10s])))"
    assert ask(query, target, at_s=NOW_S) == {}  # the sample at the window's very beginning is not in it
    assert ask(query.replace("10s", "11s"), target) == {"-": pytest.approx(0.15)}
    assert math.isnan(ask("histogram_quantile(0.75, sum by (le) (0 * rate(x_bucket[11s])))", target)["-"])


def test_ages_are_computed() -> None:
    assert ask("time() - max by (namespace, pod) (timestamp(g))", STEADY, at_s=NOW_S + 3) == {"a": 3}


def test_what_a_target_says_of_itself_does_not_replace_who_it_is() -> None:
    target = TargetHistory({"namespace": "speech", "pod": "a"})
    target.record(NOW_S, [("g", {"namespace": "other", "pod": "z", "stage": "vad"}, 1.0)], 60.0)
    assert ask('g{namespace="speech",stage="vad"}', target) == {"a": 1}


def test_a_series_that_is_not_shown_any_more_has_ended() -> None:
    target = a_target("a", {"g": [1, 2], "h": [1]})
    assert ask("h", target) == {}


def test_what_is_kept_is_bounded() -> None:
    target = TargetHistory({})
    for index in range(5000):
        target.record(index * 0.1, [("g", {}, 1.0)], 10.0)
    (series,) = target.of("g")
    assert len(series.values) == 100


def crowded(samples: int, series: int) -> TargetHistory:
    """Return a target with more samples than are kept of one, one a second, the last one now."""
    target = TargetHistory({"pod": "a"})
    shown = [("g", {"one": str(index)}, 1.0) for index in range(series)]
    for index in range(samples):
        target.record(NOW_S - samples + 1 + index, shown, 600.0)
    return target


def test_all_series_of_a_target_together_are_bounded() -> None:
    target = crowded(samples=30, series=MOST_SERIES)
    assert sum(len(series.values) for series in target.of("g")) <= MOST_SAMPLES
    assert target.crowded


def test_what_was_forgotten_for_want_of_room_is_not_taken_for_nothing() -> None:
    target = crowded(samples=30, series=MOST_SERIES)
    assert ask("count(g)", target) == {"-": MOST_SERIES}
    assert ask("count(sum_over_time(g[20s]))", target) == {"-": MOST_SERIES}
    for query in ("sum(sum_over_time(g[21s]))", "sum(rate(g[25s]))", "max_over_time(sum(g)[25s:5s])"):
        with pytest.raises(UnsupportedQuery, match=f"g: looks back further than the {MOST_SAMPLES} samples"):
            ask(query, target)


def test_a_target_that_shows_less_again_is_known_again() -> None:
    target = crowded(samples=30, series=MOST_SERIES)
    for second in range(1, 26):
        target.record(NOW_S + second, [("g", {"one": "0"}, 1.0)], 20.0)
    assert not target.crowded
    assert ask("sum_over_time(g[20s])", target, at_s=NOW_S + 25) == {"a": 20}


@pytest.mark.parametrize("query", ["g > clamp_min(g, g)", "2 > 1", "sum(2)", "1 or g", "rate(2)"])
def test_what_has_no_meaning_is_refused(query: str) -> None:
    with pytest.raises(UnsupportedQuery):
        ask(query, STEADY)
