"""What holds for every run that is scored."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from optimizer.model import Sla
from simulations.results.scoring import Clock, Items, Outcome, Steps, cap_violations, cost, score_items

CLOCK = Clock(duration_s=100, warmup_s=15, window_s=10)


@st.composite
def runs(draw: st.DrawFn) -> Items:
    count = draw(st.integers(0, 200))
    return Items(
        arrival_s=draw(arrays(np.float64, count, elements=st.floats(0, 120))),
        latency_s=draw(arrays(np.float64, count, elements=st.floats(0, 10))),
        outcome=draw(arrays(np.uint8, count, elements=st.sampled_from([int(kind) for kind in Outcome]))),
    )


@given(runs(), st.floats(0.01, 3), st.sampled_from([50.0, 90.0, 95.0, 99.9]))
def test_every_offered_item_has_one_outcome_and_one_window(items: Items, sla_s: float, percent: float) -> None:
    score = score_items(items, Sla(latency_s=sla_s, percentile=percent), CLOCK)

    assert score.offered == score.served + score.filtered + score.shed + score.refused + score.lost + score.in_flight
    assert sum(window.offered for window in score.windows) == score.offered
    assert sum(window.served for window in score.windows) == score.served
    assert sum(window.length_s for window in score.windows) == 85


@given(runs(), st.floats(0.01, 3), st.floats(0, 3))
def test_a_laxer_sla_is_never_met_less_often(items: Items, sla_s: float, slack_s: float) -> None:
    strict = score_items(items, Sla(latency_s=sla_s, percentile=90), CLOCK)
    lax = score_items(items, Sla(latency_s=sla_s + slack_s, percentile=90), CLOCK)

    assert (strict.within_sla_share or 0) <= (lax.within_sla_share or 0)


@given(runs(), st.integers(0, 2**32))
def test_the_order_of_items_changes_nothing(items: Items, seed: int) -> None:
    shuffled = items.select(np.random.default_rng(seed).permutation(len(items.arrival_s)))
    sla = Sla(latency_s=0.5, percentile=90)

    assert score_items(shuffled, sla, CLOCK) == score_items(items, sla, CLOCK)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.floats(0.1, 50))
def test_cost_scales_with_price_and_a_cap_above_all_spend_is_never_violated(values: list[float], factor: float) -> None:
    times = list(np.linspace(0, 99, len(values)))
    spend = Steps(times_s=times, values=values)
    dearer = Steps(times_s=times, values=[value * factor for value in values])

    assert np.isclose(cost(dearer, CLOCK), factor * cost(spend, CLOCK))
    assert cap_violations(spend, Steps(times_s=[0], values=[max(values)]), 100, []) == 0
