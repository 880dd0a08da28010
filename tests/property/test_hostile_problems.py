"""Questions that nobody should ask: each is answered within every hard limit, or refused by name, in bounded work."""

import math
import tracemalloc
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.allocate import allocate
from optimizer.fleet.fleet import Fleet
from optimizer.model import (
    Cascade,
    Composition,
    Demand,
    InvalidProblem,
    Link,
    Pipeline,
    PipelineKey,
    Placement,
    Pool,
    PoolName,
    Problem,
    Routing,
    ServiceLaw,
    Size,
    Sla,
    Stage,
    StageName,
    whole_instances,
)
from optimizer.plan import Plan
from optimizer.reports.advice import advise
from optimizer.reports.curve import frontier
from optimizer.search.tables import supply_of

SLACK = 1e-6
SIZES: tuple[Size, ...] = (1, 2, 3, 7, 1000, Fraction(1, 2), Fraction(1, 7))
NAMES = ("cpu", "inferentia", "gpu")
RATES = (0.0, 1e-9, 1e-3, 1.0, 300.0, 1e6, 1e12)
BAD = (math.nan, math.inf, -math.inf, -1.0)


@st.composite
def placements(draw: st.DrawFn, pool: str) -> Placement:
    low = draw(st.sampled_from((0, 0, 1, 5)))
    return on(
        pool,
        service=draw(st.sampled_from(((0.02, 0.0), (1e-9, 0.0), (0.0, 1e-6), (3600.0, 0.0), (0.02, 1e3)))),
        cv=draw(st.sampled_from((0.0, 0.3, 50.0))),
        bounds=(low, low + draw(st.sampled_from((0, 1, 30)))),
        per_instance=draw(st.sampled_from(SIZES)),
        batches=draw(st.sampled_from(((1,), (1, 4), (1, 512)))),
        wait_s=draw(st.sampled_from((0.0, 0.005, 1e6))),
        slots=draw(st.sampled_from((None, None, 1, 10**9))),
        wer=draw(st.sampled_from((None, 0.1, 0.9))),
        concurrency=draw(st.sampled_from((1, 64))),
        saturation_rps=draw(st.sampled_from((None, 1e-6, 40.0))),
        current=draw(st.sampled_from((0, 10**6))),
    )


@st.composite
def with_extras(draw: st.DrawFn, stage: Stage) -> Stage:
    """Return the stage as it is, with a link in front of its replicas, or as a cascade."""
    kind = draw(st.sampled_from(("plain", "plain", "link", "cascade")))
    if kind == "link":
        link = Link(item_s=draw(st.sampled_from((1e-9, 0.05, 1e6))), share=draw(st.sampled_from((1.0, 1e-9, 0.1))))
        return replace(stage, placements=tuple(replace(own, link=link) for own in stage.placements))
    if kind == "cascade" and len(stage.placements) > 1:
        placements = tuple(replace(own, session_slots=None) for own in stage.placements)
        cascade = Cascade(to=placements[-1].name, share=draw(st.sampled_from((0.0, 1e-9, 0.2, 1.0))))
        return replace(stage, placements=placements, cascade=cascade)
    return stage


@st.composite
def pipelines(draw: st.DrawFn, key: str) -> Pipeline:
    shape = draw(st.sampled_from((("a", ""), ("a", "", "b", "a"), ("a", "", "b", "a", "c", "a"))))
    stages = [
        a_stage(
            name,
            *(
                draw(placements(pool))
                for pool in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
            ),
            after=[after] if after else [],
            pass_ratio=draw(st.sampled_from((1.0, 1e-9, 100.0, 2.5))) if not after else 1.0,
            routing=draw(st.sampled_from(Routing)),
            floor=draw(st.sampled_from((1, 1, 40))),
        )
        for name, after in zip(shape[::2], shape[1::2], strict=True)
    ]
    stages = [draw(with_extras(stage)) for stage in stages]
    return a_pipeline(
        *stages,
        key=key,
        rate_rps=draw(st.sampled_from(RATES)),
        sessions=draw(st.sampled_from((None, 0.0, 5.0, 1e9))),
        sla_s=draw(st.sampled_from((1e-9, 0.001, 0.2, 1e9))),
        percentile=draw(st.sampled_from((0.001, 50.0, 95.0, 99.999))),
        budget=draw(st.sampled_from((None, 0.0, 3.0, 1e15))),
        priority=draw(st.sampled_from((0, 0, -5, 10**9))),
        max_wer=draw(st.sampled_from((None, None, 0.5, 0.0))),
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    return Problem(
        pipelines=tuple(draw(pipelines(f"x/p{number}")) for number in range(draw(st.sampled_from((1, 1, 2, 3))))),
        pools=pools(
            **{
                name: (draw(st.sampled_from((0.0, 0.5, 1e9))), draw(st.sampled_from((0, 1, 6, 10**9))))
                for name in NAMES
            }
        ),
        budget_per_hour=draw(st.sampled_from((None, None, 0.0, 5.0, 1e15))),
        composition=draw(st.sampled_from(Composition)),
        switching_cost_per_hour=draw(st.sampled_from((0.0, 0.01, 1e9))),
    )


def check(problem: Problem, plan: Plan) -> None:
    """A plan keeps every hard limit, whatever it was asked, and holds numbers only."""
    total = 0.0
    used: dict[PoolName, list[tuple[Size, int]]] = {name: [] for name in problem.pools}
    for pipeline in problem.pipelines:
        answer = plan.of(pipeline.key)
        replicas, cost = answer.replicas(), 0.0
        for stage in pipeline.stages:
            for placement in stage.placements:
                count = replicas[stage.name, placement.name]
                assert 0 <= count <= placement.max_replicas
                assert (
                    count == 0 or placement.wer is None or pipeline.max_wer is None or placement.wer <= pipeline.max_wer
                )
                cost += count * problem.pools[placement.pool].replica_price_per_hour(placement)
                used[placement.pool].append((placement.per_instance, count))
        slack = SLACK * max(1.0, cost)
        assert cost == pytest.approx(answer.cost_per_hour, rel=1e-6, abs=SLACK)
        assert pipeline.budget_per_hour is None or cost <= pipeline.budget_per_hour + slack
        assert 0 <= answer.served_fraction <= 1
        assert answer.feasible == (answer.served_fraction >= 1) == (answer.limited_by is None)
        assert answer.latency_s is None or answer.latency_s >= 0
        if answer.served_fraction > 0 and pipeline.demand.entry_rate_rps > 0:
            assert answer.latency_s is not None
            assert answer.latency_s <= pipeline.sla.latency_s * (1 + SLACK)
        total += cost
    assert problem.budget_per_hour is None or total <= problem.budget_per_hour + SLACK * max(1.0, total)
    for pool in plan.pools:
        assert whole_instances(used[pool.name]) == pool.instances <= problem.pools[pool.name].instances


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
def test_absurd_questions_get_plans_within_every_limit(problem: Problem) -> None:
    check(problem, allocate(problem))


def test_prices_beyond_the_precision_of_numbers_do_not_keep_the_search_going_for_ever() -> None:
    """At 1e15 USD per hour, sums of the same prices in another order differ by more than a replica costs."""
    slow, slower, moved = (0.02, 1e3), (3600.0, 0.0), 10**6
    first = a_stage(
        "a",
        on("inferentia", service=slow, cv=50.0, bounds=(5, 5), per_instance=7, batches=(1, 4), slots=1, concurrency=64,
           saturation_rps=1e-6, current=moved),
        on("gpu", service=slow, cv=0.0, bounds=(1, 1), per_instance=2, wait_s=0.005, saturation_rps=1e-6),
        on("cpu", service=slow, cv=0.3, bounds=(0, 1), per_instance=7, batches=(1, 4), wait_s=0.005, slots=10**9,
           concurrency=64, current=moved),
        pass_ratio=1e-9, routing=Routing.STICKY, floor=40,
    )  # fmt: skip
    second = a_stage(
        "b",
        on("cpu", service=(1e-9, 0.0), cv=0.0, bounds=(0, 0), per_instance=1000, batches=(1, 512), wait_s=1e6,
           concurrency=64),
        on("inferentia", service=(0.0, 1e-6), cv=0.0, bounds=(5, 35), per_instance=2, batches=(1, 512), wait_s=1e6,
           slots=10**9, saturation_rps=1e-6),
        on("gpu", service=(0.0, 1e-6), cv=0.3, bounds=(5, 5), per_instance=2, saturation_rps=1e-6),
        after=["a"], routing=Routing.STICKY,
    )  # fmt: skip
    third = a_stage(
        "c",
        on("cpu", service=slow, cv=0.3, bounds=(0, 30), wait_s=0.005, concurrency=64, saturation_rps=40.0,
           current=moved),
        on("inferentia", service=slower, cv=0.3, bounds=(0, 0), per_instance=2, batches=(1, 512), concurrency=64),
        on("gpu", service=slower, cv=50.0, bounds=(5, 35), per_instance=3, wait_s=0.005, concurrency=64,
           saturation_rps=1e-6, current=moved),
        after=["a"], routing=Routing.STICKY,
    )  # fmt: skip
    problem = Problem(
        pipelines=(a_pipeline(first, second, third, rate_rps=300.0, sessions=0.0, sla_s=1e9, percentile=50.0),),
        pools=pools(cpu=(0.5, 10**9), inferentia=(1e9, 6), gpu=(0.5, 10**9)),
        composition=Composition.SUM,
        switching_cost_per_hour=1e9,
    )
    check(problem, allocate(problem))


def test_times_too_short_for_a_replay_are_planned_all_the_same() -> None:
    placement = on("cpu", service=(1e-9, 0.0), cv=0.0)
    pipeline = a_pipeline(a_stage("a", placement), rate_rps=0.001, percentile=50.0)
    problem = replace(a_problem(pipeline), composition=Composition.RSS)
    plan = allocate(problem)
    check(problem, plan)
    assert plan.feasible


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
def test_absurd_questions_get_advice_and_curves(problem: Problem) -> None:
    pipeline = problem.pipelines[0]
    fleet = Fleet(problem, supply_of(problem))
    advice = advise(fleet, pipeline, fleet.supply.limits)
    for value in (advice.required_budget_per_hour, advice.best_latency_s):
        assert value is None or (math.isfinite(value) and value >= 0)
    curve = frontier(problem, pipeline.key, most_corners=20)
    assert len(curve.corners) <= 20
    costs = [corner.cost_per_hour for corner in curve.corners]
    latencies = [corner.latency_s for corner in curve.corners]
    assert costs == sorted(costs)
    assert latencies == sorted(latencies, reverse=True)


def sizes() -> list[tuple[str, Problem]]:
    """Return problems far larger than a manifest may describe."""
    many = [f"p{number:02}" for number in range(50)]
    where = pools(**{name: (0.3 + 0.01 * number, 30) for number, name in enumerate(many)})

    def a_chain(length: int, names: list[str], most: int) -> list[Stage]:
        return [
            a_stage(
                f"s{stage:02}",
                *(on(name, service=(0.01, 0.001), bounds=(0, most), batches=(1, 8)) for name in names),
                after=[f"s{stage - 1:02}"] if stage else [],
            )
            for stage in range(length)
        ]

    return [
        ("40 stages", a_problem(a_pipeline(*a_chain(40, many[:2], 8), rate_rps=300.0, sla_s=2.0), where=where)),
        ("50 placements", a_problem(a_pipeline(*a_chain(1, many, 8), rate_rps=2000.0), where=where)),
        ("too much for them", a_problem(a_pipeline(*a_chain(6, many[:4], 8), rate_rps=1e6, sla_s=1.0), where=where)),
        ("sessions", a_problem(a_pipeline(*a_chain(2, many[:2], 8), rate_rps=10.0, sessions=1e9), where=where)),
        (
            "a million replicas",
            a_problem(
                a_pipeline(*a_chain(2, ["p00"], 10**6), rate_rps=100.0, sla_s=1.0), where=pools(p00=(0.3, 10**6))
            ),
        ),
    ]


@pytest.mark.parametrize("name", [name for name, _ in sizes()])
def test_large_questions_are_answered_in_bounded_memory(name: str) -> None:
    problem = dict(sizes())[name]
    tracemalloc.start()
    try:
        plan = allocate(problem)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    check(problem, plan)
    assert peak < 400e6


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("entry_rate_rps", lambda bad: Demand(entry_rate_rps=bad)),
        ("sessions", lambda bad: Demand(entry_rate_rps=1.0, sessions=bad)),
        ("arrival_cv2", lambda bad: Demand(entry_rate_rps=1.0, arrival_cv2=bad)),
        ("latency_s", lambda bad: Sla(latency_s=bad)),
        ("percentile", lambda bad: Sla(latency_s=1.0, percentile=bad)),
        ("fixed_s", lambda bad: ServiceLaw(fixed_s=bad)),
        ("per_item_s", lambda bad: ServiceLaw(fixed_s=1.0, per_item_s=bad)),
        ("cv", lambda bad: ServiceLaw(fixed_s=1.0, cv=bad)),
        ("price_per_hour", lambda bad: Pool(name=PoolName("cpu"), price_per_hour=bad, instances=1)),
        ("batch_wait_s", lambda bad: on("cpu", wait_s=bad)),
        ("saturation_rps", lambda bad: on("cpu", saturation_rps=bad)),
        ("wer", lambda bad: on("cpu", wer=bad)),
        ("budget_per_hour", lambda bad: a_pipeline(a_stage("a", on("cpu")), budget=bad)),
        ("max_wer", lambda bad: a_pipeline(a_stage("a", on("cpu")), max_wer=bad)),
        ("pass_ratio", lambda bad: a_stage("a", on("cpu"), pass_ratio=bad)),
        ("latency_factor", lambda bad: replace(a_stage("a", on("cpu")), latency_factor=bad)),
        ("budget_per_hour", lambda bad: a_problem(a_pipeline(a_stage("a", on("cpu"))), budget=bad)),
        ("switching_cost_per_hour", lambda bad: a_problem(a_pipeline(a_stage("a", on("cpu"))), switching=bad)),
    ],
)
def test_what_is_no_number_is_refused_by_name(field: str, make: object, bad: float) -> None:
    assert callable(make)
    with pytest.raises(InvalidProblem, match=field) as refused:
        make(bad)
    assert repr(bad) in str(refused.value)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("max_replicas", lambda: on("cpu", bounds=(3, 2))),
        ("min_replicas", lambda: on("cpu", bounds=(-1, 2))),
        ("per_instance", lambda: on("cpu", per_instance=0)),
        ("concurrency", lambda: on("cpu", concurrency=0)),
        ("batch_sizes", lambda: on("cpu", batches=())),
        ("batch_sizes", lambda: on("cpu", batches=(4, 1))),
        ("session_slots", lambda: on("cpu", slots=0)),
        ("service law", lambda: ServiceLaw(fixed_s=0.0)),
        ("placements", lambda: Stage(name=StageName("a"), placements=())),
        ("placements", lambda: a_stage("a", on("cpu"), on("cpu"))),
        ("stages", a_pipeline),
        ("after", lambda: a_pipeline(a_stage("a", on("cpu"), after=["b"]), a_stage("b", on("cpu")))),
        ("pool", lambda: a_problem(a_pipeline(a_stage("a", on("tpu"))))),
        ("pipelines", lambda: a_problem(*[a_pipeline(a_stage("a", on("cpu")))] * 2)),
        ("instances", lambda: Pool(name=PoolName("cpu"), price_per_hour=1.0, instances=-1)),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(field: str, make: object) -> None:
    assert callable(make)
    with pytest.raises(InvalidProblem, match=field):
        make()


def test_a_pipeline_that_is_not_there_has_no_curve() -> None:
    with pytest.raises(KeyError):
        frontier(a_problem(a_pipeline(a_stage("a", on("cpu")))), PipelineKey("x/none"))
