import math
from typing import Any

import numpy as np
import pytest

from profiler.samples import MISSING, Absence, AbsenceReason, AtLeast, Reading
from profiler.sources.combine import (
    combine_ratio,
    combine_values,
    histogram_quantile,
    histogram_variation,
    of_histogram,
    reporting,
    summed_buckets,
    whole_answer_percentile,
)
from profiler.sources.presets import Combine, Edge, Formula
from simulations.results.histogram import VLLM_TOKENS

PODS = {("speech", f"vad-{index}") for index in range(4)}
FIRST, SECOND, THIRD, FOURTH = sorted(PODS)
ALL = reporting(PODS, dict.fromkeys(PODS, 1.0), 30.0)
INF = math.inf


def reason(reading: Reading) -> AbsenceReason:
    assert isinstance(reading, Absence)
    return reading.reason


def quantile(share: float) -> Formula:
    return Formula(combine=Combine.QUANTILE, value="x{$pods}", quantile=share)


class TestWhoReports:
    def test_a_pod_with_young_samples_reports(self) -> None:
        assert reporting(PODS, {FIRST: 29.0, SECOND: 31.0}, 30.0).fresh == {FIRST}

    def test_a_pod_with_old_samples_is_stale_and_one_without_is_neither(self) -> None:
        pods = reporting(PODS, {FIRST: 29.0, SECOND: 31.0}, 30.0)
        assert pods.stale == {SECOND}

    def test_pods_of_others_are_ignored(self) -> None:
        assert reporting(PODS, {("speech", "other"): 1.0}, 30.0).fresh == set()

    def test_an_age_that_is_no_number_is_stale(self) -> None:
        assert reporting(PODS, {FIRST: math.nan}, 30.0).stale == {FIRST}


class TestSums:
    def test_all_pods_together(self) -> None:
        assert combine_values(Combine.SUM, ALL, dict.fromkeys(PODS, 2.5)) == 10.0

    def test_one_silent_pod_makes_it_partial(self) -> None:
        found = combine_values(Combine.SUM, ALL, {FIRST: 1.0, SECOND: 1.0, THIRD: 1.0})
        assert found == Absence(reason=AbsenceReason.PARTIAL, detail="3 of 4 pods, 1 silent (vad-3)")

    def test_one_stale_pod_makes_it_partial_though_it_has_a_value(self) -> None:
        pods = reporting(PODS, {FIRST: 1.0, SECOND: 1.0, THIRD: 1.0, FOURTH: 99.0}, 30.0)
        found = combine_values(Combine.SUM, pods, dict.fromkeys(PODS, 2.5))
        assert found == Absence(reason=AbsenceReason.PARTIAL, detail="3 of 4 pods, 1 stale (vad-3)")

    def test_zero_is_a_number(self) -> None:
        assert combine_values(Combine.SUM, ALL, dict.fromkeys(PODS, 0.0)) == 0.0

    def test_slightly_negative_growth_is_none(self) -> None:
        assert combine_values(Combine.SUM, ALL, dict.fromkeys(PODS, -0.1)) == 0.0


class TestMeansAndMaxima:
    @pytest.mark.parametrize(("combine", "expected"), [(Combine.MEAN, 1.5), (Combine.MAX, 2.0)])
    def test_half_of_the_pods_are_enough(self, combine: Combine, expected: float) -> None:
        assert combine_values(combine, ALL, {FIRST: 1.0, SECOND: 2.0}) == expected

    @pytest.mark.parametrize("combine", [Combine.MEAN, Combine.MAX])
    def test_less_than_half_is_partial(self, combine: Combine) -> None:
        assert reason(combine_values(combine, ALL, {FIRST: 1.0})) is AbsenceReason.PARTIAL

    def test_a_pod_that_is_no_number_does_not_spoil_the_others(self) -> None:
        values = {FIRST: 1.0, SECOND: 2.0, THIRD: math.nan, FOURTH: INF}
        assert combine_values(Combine.MAX, ALL, values) == 2.0


class TestAbsences:
    @pytest.mark.parametrize("combine", [Combine.SUM, Combine.MEAN, Combine.MAX])
    def test_no_pod_at_all_is_missing(self, combine: Combine) -> None:
        assert reason(combine_values(combine, ALL, {})) is AbsenceReason.MISSING

    def test_only_old_samples_are_stale(self) -> None:
        pods = reporting(PODS, dict.fromkeys(PODS, 99.0), 30.0)
        assert reason(combine_values(Combine.SUM, pods, dict.fromkeys(PODS, 1.0))) is AbsenceReason.STALE

    @pytest.mark.parametrize("value", [math.nan, INF, -INF])
    def test_only_nan_and_infinity_is_not_a_number(self, value: float) -> None:
        found = combine_values(Combine.MEAN, ALL, dict.fromkeys(PODS, value))
        assert reason(found) is AbsenceReason.NOT_A_NUMBER


class TestAbsurdNumbers:
    @pytest.mark.parametrize("combine", [Combine.SUM, Combine.MEAN, Combine.MAX])
    def test_pods_whose_numbers_cannot_be_added_up_give_no_number(self, combine: Combine) -> None:
        assert reason(combine_values(combine, ALL, dict.fromkeys(PODS, 1e308))) is AbsenceReason.NOT_A_NUMBER

    def test_a_sum_with_an_absurd_pod_is_partial(self) -> None:
        found = combine_values(Combine.SUM, ALL, dict.fromkeys(PODS, 1.0) | {FIRST: 1e25})
        assert found == Absence(reason=AbsenceReason.PARTIAL, detail="3 of 4 pods")

    def test_an_absurd_pod_does_not_spoil_a_mean(self) -> None:
        assert combine_values(Combine.MEAN, ALL, dict.fromkeys(PODS, 2.0) | {FIRST: 1e25}) == 2.0

    def test_a_sum_of_what_is_just_not_absurd_is_no_number(self) -> None:
        assert reason(combine_values(Combine.SUM, ALL, dict.fromkeys(PODS, 1e24))) is AbsenceReason.NOT_A_NUMBER

    @pytest.mark.parametrize(("above", "below"), [(1e308, 1.0), (1.0, 1e308), (1e308, -1e308), (1e20, 1e-20)])
    def test_a_ratio_of_them_is_no_number(self, above: float, below: float) -> None:
        found = combine_ratio(ALL, dict.fromkeys(PODS, above), dict.fromkeys(PODS, below))
        assert reason(found) is AbsenceReason.NOT_A_NUMBER

    def test_a_histogram_of_them_is_no_number(self) -> None:
        found = of_histogram(quantile(0.95), summed_buckets(ALL, {pod: {0.1: 1e308, INF: 1e308} for pod in PODS}))
        assert reason(found) is AbsenceReason.NOT_A_NUMBER

    def test_a_quantile_between_absurd_bounds_is_no_number(self) -> None:
        found = of_histogram(quantile(0.95), summed_buckets(ALL, {pod: {1e30: 1.0, INF: 1.0} for pod in PODS}))
        assert reason(found) is AbsenceReason.NOT_A_NUMBER


class TestRatios:
    def test_totals_are_divided_not_pods_averaged(self) -> None:
        assert combine_ratio(ALL, dict.fromkeys(PODS, 1.0) | {FIRST: 5.0}, dict.fromkeys(PODS, 2.0)) == 1.0

    def test_pods_that_tell_only_one_side_are_left_out(self) -> None:
        above = {FIRST: 1.0, SECOND: 1.0, THIRD: 100.0}
        assert combine_ratio(ALL, above, {FIRST: 2.0, SECOND: 2.0}) == 0.5

    def test_nothing_to_divide_by_is_no_traffic(self) -> None:
        found = combine_ratio(ALL, dict.fromkeys(PODS, 0.0), dict.fromkeys(PODS, 0.0))
        assert reason(found) is AbsenceReason.NO_TRAFFIC

    def test_too_few_pods_is_partial(self) -> None:
        assert reason(combine_ratio(ALL, {FIRST: 1.0}, {FIRST: 1.0})) is AbsenceReason.PARTIAL

    def test_a_positive_ratio_is_never_zero(self) -> None:
        nothing, items = dict.fromkeys(PODS, 0.0), dict.fromkeys(PODS, 2.0)
        found = combine_ratio(ALL, nothing, items, positive=True)
        assert found == Absence(reason=AbsenceReason.UNSUPPORTED, detail="the server reports 0 for every item")
        assert reason(combine_ratio(ALL, nothing, nothing, positive=True)) is AbsenceReason.NO_TRAFFIC
        assert combine_ratio(ALL, nothing | {FIRST: 1.0}, items, positive=True) > 0  # type: ignore[operator]


class TestPercentilesOfWholeAnswers:
    def percentile(self, **changes: Any) -> Reading:
        """285 ms is interpolated; the first token takes 40 ms at the percentile, 30 ms on average."""
        given = {"coarse": 0.285, "bucket": (0.0, 0.3), "first": 0.04, "means": (0.1, 0.03), **changes}
        return whole_answer_percentile(given.pop("coarse"), **given)

    def test_in_the_lowest_bucket_the_rest_of_the_answer_is_added_to_the_first_token(self) -> None:
        assert self.percentile() == pytest.approx(0.11)

    def test_it_stays_in_the_bucket(self) -> None:
        assert self.percentile(first=0.28) == 0.3
        assert self.percentile(means=(0.03, 0.1)) == 0.04  # means of different items: the rest is not negative

    def test_above_the_lowest_bucket_the_histogram_is_precise_enough(self) -> None:
        assert self.percentile(coarse=0.48, bucket=(0.3, 0.5)) == 0.48

    @pytest.mark.parametrize("changes", [{"first": MISSING}, {"means": (MISSING, 0.03)}, {"means": (0.1, MISSING)}])
    def test_without_the_first_token_it_is_interpolated(self, changes: dict[str, Any]) -> None:
        assert self.percentile(**changes) == 0.285

    def test_an_absence_stays_one(self) -> None:
        assert self.percentile(coarse=MISSING, bucket=(MISSING, MISSING)) == MISSING


class TestQuantiles:
    def test_it_interpolates_within_the_bucket_as_promql_does(self) -> None:
        assert histogram_quantile(0.95, {0.1: 90.0, 0.2: 100.0, INF: 100.0}) == pytest.approx(0.15)

    def test_the_first_bucket_begins_at_zero(self) -> None:
        assert histogram_quantile(0.5, {0.1: 10.0, INF: 10.0}) == pytest.approx(0.05)

    def test_beyond_the_last_bound_it_is_that_bound(self) -> None:
        found = histogram_quantile(0.95, {0.1: 1.0, 0.2: 2.0, INF: 100.0})
        assert (found, type(found)) == (0.2, AtLeast)
        assert not isinstance(histogram_quantile(0.95, {0.1: 1.0, 0.2: 95.0, INF: 100.0}), AtLeast)

    def test_empty_buckets_are_no_traffic(self) -> None:
        assert reason(histogram_quantile(0.95, {0.1: 0.0, INF: 0.0})) is AbsenceReason.NO_TRAFFIC

    @pytest.mark.parametrize("buckets", [{}, {INF: 1.0}, {0.1: 1.0, 0.2: 1.0}])
    def test_what_is_no_histogram_gives_no_number(self, buckets: dict[float, float]) -> None:
        assert reason(histogram_quantile(0.95, buckets)) is AbsenceReason.NOT_A_NUMBER

    def test_rounding_between_buckets_does_no_harm(self) -> None:
        assert histogram_quantile(0.95, {0.1: 100.0, 0.2: 99.999, INF: 100.0}) == pytest.approx(0.095)

    @pytest.mark.parametrize(("edge", "bound"), [(Edge.FLOOR, 0.1), (Edge.CEILING, 0.2)])
    def test_the_bounds_of_the_bucket_are_all_that_is_known(self, edge: Edge, bound: float) -> None:
        assert histogram_quantile(0.95, {0.1: 90.0, 0.2: 100.0, INF: 100.0}, edge) == bound

    @pytest.mark.parametrize("edge", Edge)
    def test_beyond_the_last_bound_every_answer_is_that_bound(self, edge: Edge) -> None:
        assert histogram_quantile(0.95, {0.1: 1.0, 0.2: 2.0, INF: 100.0}, edge) == 0.2

    def test_buckets_of_all_pods_are_summed_before_the_quantile(self) -> None:
        slow = {0.1: 0.0, 0.2: 10.0, INF: 10.0}
        fast = {0.1: 90.0, 0.2: 90.0, INF: 90.0}
        found = of_histogram(quantile(0.95), summed_buckets(ALL, {FIRST: slow, SECOND: fast}))
        assert found == pytest.approx(0.15)

    def test_pods_with_other_bounds_are_joined_on_the_common_ones(self) -> None:
        coarse = {0.2: 10.0, INF: 10.0}
        fine = {0.1: 5.0, 0.2: 10.0, INF: 10.0}
        assert of_histogram(quantile(0.5), summed_buckets(ALL, {FIRST: coarse, SECOND: fine})) == pytest.approx(0.1)

    def test_the_variation_is_that_of_the_middles_of_the_buckets(self) -> None:
        variation = Formula(combine=Combine.VARIATION, value="x{$pods}")
        found = of_histogram(variation, {1.0: 0.0, 3.0: 5.0, 5.0: 10.0, INF: 10.0})  # five of 2, five of 4
        assert found == pytest.approx(1 / 3)
        assert not isinstance(found, AtLeast)
        assert isinstance(of_histogram(variation, {1.0: 5.0, INF: 10.0}), AtLeast)
        assert of_histogram(variation, {20.0: 0.0, 50.0: 0.105, INF: 0.105}) == pytest.approx(0.0)
        assert reason(of_histogram(variation, {1.0: 0.0, INF: 0.0})) is AbsenceReason.NO_TRAFFIC
        assert reason(of_histogram(variation, {INF: 1.0})) is AbsenceReason.NOT_A_NUMBER

    @pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
    def test_the_variation_of_lengths_is_read_off_the_buckets_of_vllm(self, cv: float) -> None:
        rng = np.random.default_rng(7)
        for mean in (30.0, 150.0, 400.0):
            lengths = np.maximum(1, np.round(rng.gamma(cv**-2, mean * cv**2, 20_000)))
            counts = {float(bound): float((lengths <= bound).sum()) for bound in (*VLLM_TOKENS, INF)}
            found = histogram_variation(counts)
            assert isinstance(found, float)
            assert found == pytest.approx(lengths.std() / lengths.mean(), abs=0.15)

    def test_too_few_pods_is_partial(self) -> None:
        assert (
            reason(of_histogram(quantile(0.95), summed_buckets(ALL, {FIRST: {0.1: 1.0, INF: 1.0}})))
            is AbsenceReason.PARTIAL
        )
