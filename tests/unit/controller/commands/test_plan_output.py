"""What a person and a program read of a plan: plans made by hand, so that every answer occurs."""

import json
from dataclasses import replace

import pytest
from builders import a_placement, a_spec, a_stage
from problems import pools

from controller.aws.price_table import bundled_quote
from controller.commands.plan_output import document, print_plan
from controller.commands.plan_request import PlanRequest
from controller.core.assess.optimizer_input import optimizer_pipeline
from controller.core.messages.phrases import share_words
from controller.core.state.cloud import AwsPrice, PriceOrigin, PriceQuote
from controller.core.state.schedule import EventFloor
from controller.core.state.spec import DemandUnit, PipelineSpec
from optimizer.model import Composition, GroupBudget, Mixing, PipelineKey, PoolName, Problem, StageName
from optimizer.plan import (
    Advice,
    Limit,
    LimitKind,
    Packing,
    PipelinePlan,
    PlacementPlan,
    PlacementStep,
    Plan,
    PoolPlan,
    ReplayCheck,
    StagePlan,
    Step,
)

EVENT = EventFloor(name="concert", demand=1200.0, start_s=0.0, end_s=60.0)
NIGHT = EventFloor(name="night", demand=20.0, start_s=0.0, end_s=60.0)
KEY = PipelineKey("speech/captions")
GPU = PoolName("gpu")
INFERENTIA = PoolName("inferentia")


def a_stage_plan(name: str, *placements: tuple[PoolName, int], error: float | None = None) -> StagePlan:
    return StagePlan(
        name=StageName(name),
        rate_rps=1250.0,
        utilization=0.61,
        latency_s=0.18,
        mean_s=0.09,
        placements=tuple(PlacementPlan(name=pool, replicas=count, batch=8) for pool, count in placements),
        latency_error=error,
    )


STEP = Step(
    stage=StageName("decoder"),
    changes=(PlacementStep(name=GPU, before=4, after=5, batch=8),),
    latency_saved_s=0.038,
    cost_added_per_hour=1.01,
)
GOOD = PipelinePlan(
    key=KEY,
    served_fraction=1.0,
    feasible=True,
    limited_by=None,
    latency_s=0.389,
    cost_per_hour=24.81,
    bottleneck=StageName("decoder"),
    stages=(a_stage_plan("decoder", (GPU, 5), (INFERENTIA, 0), error=0.04),),
    steps=(STEP,),
    next_step=STEP,
    latency_error=0.06,
    replay=ReplayCheck(latency_s=0.389, composed_s=0.371),
)
BAD = replace(
    GOOD,
    feasible=False,
    served_fraction=0.645,
    limited_by=Limit(kind=LimitKind.BUDGET),
    advice=Advice(required_budget_per_hour=31.2, best_latency_s=0.455),
)


def a_plan(pipeline: PipelinePlan = GOOD, *, bound: float | None = 24.81, price: float | None = 0.62) -> Plan:
    return Plan(
        pipelines=(pipeline,),
        pools=(
            PoolPlan(name=GPU, instances=5, limit=10, shadow_price_per_hour=None if price is None else 0.0),
            PoolPlan(name=INFERENTIA, instances=0, limit=12, shadow_price_per_hour=price),
        ),
        cost_per_hour=pipeline.cost_per_hour,
        billed_per_hour=26.5,
        lower_bound_per_hour=bound,
    )


def a_request(*, composition: Composition = Composition.SUM, search_effort: int | None = None) -> PlanRequest:
    spec: PipelineSpec = replace(
        a_spec(a_stage("decoder", a_placement("gpu"), a_placement("inferentia")), sla_s=0.4, budget=30.0),
        unit=DemandUnit.STREAMS,
        chunk_s=0.32,
    )
    return PlanRequest(
        specs={KEY: spec},
        demands={KEY: 800.0},
        problem=Problem(
            pipelines=(optimizer_pipeline(spec, 800.0),),
            pools=pools(gpu=(1.01, 10), inferentia=(0.76, 12)),
            composition=composition,
            search_effort=search_effort,
        ),
    )


def printed(capsys: pytest.CaptureFixture[str], plan: Plan, request: PlanRequest | None = None) -> list[str]:
    print_plan(plan, request or a_request())
    return capsys.readouterr().out.splitlines()


def test_a_proven_plan_tells_promise_error_bar_replay_steps_prices_and_proof(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, a_plan())
    assert lines[:2] == [
        "speech/captions: the SLA is met",
        (
            "  800 streams (2,500 items/s), p95 389 ms ± 6% of 400 ms (replayed; composed of the stages: 371 ms), "
            "$24.81/h of $30.00/h"
        ),
    ]
    assert any("180 ms ± 4%" in line and "gpu × 5 (batch 8)" in line for line in lines)
    for sentence in (
        "  1. decoder +1 on gpu: −38 ms for $1.01/h",
        "the next dollar would go to: decoder +1 on gpu: −38 ms for $1.01/h",
        "one more inferentia instance saves $0.62/h",
        "$24.81/h for the replicas' shares of instances, $26.50/h billed for the whole instances that they occupy",
        "optimal: no plan under $24.81/h meets 400 ms",
    ):
        assert sentence in lines
    assert "percentiles summed" in lines[-1]


def test_known_demand_above_the_load_is_named_with_the_option_that_plans_it(capsys: pytest.CaptureFixture[str]) -> None:
    request = a_request()
    specs = {KEY: replace(request.specs[KEY], at_least=(NIGHT, EVENT))}
    request = replace(request, specs=specs)
    (line,) = (line for line in printed(capsys, a_plan(), request) if "atLeast" in line)
    assert line == (
        "  demand.atLeast concert is not in this plan: at least 1,200 streams while it is active; "
        "--demand speech/captions=1200 plans them"
    )
    (own,) = document(a_plan(), request, solve_s=0.1)["pipelines"]
    assert own["at_least"] == [{"name": "concert", "demand": 1200.0}]
    (own,) = document(a_plan(), replace(request, demands={KEY: 1200.0}), solve_s=0.1)["pipelines"]
    assert own["at_least"] == []


def test_a_plan_that_is_not_proven_tells_the_gap_and_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, a_plan(bound=24.5), a_request(composition=Composition.RSS, search_effort=10))
    assert "not proven optimal: at most 1.3% above the cheapest; no plan under $24.50/h meets 400 ms" in lines
    assert "a larger --search-effort may find a cheaper plan or prove this one" in lines
    assert "(RSS)" in lines[-1]
    assert not [line for line in lines if line.startswith("optimal")]


def test_without_a_bound_nothing_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, a_plan(bound=None, price=None))
    assert lines[-1] == "not proven optimal: the gap to the cheapest plan is unknown"
    assert not [line for line in lines if "one more" in line]


def test_too_small_a_budget_is_told_with_what_would_do_and_what_it_buys(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, a_plan(BAD, bound=None, price=None))
    assert lines[0] == "speech/captions: the SLA cannot be met for the whole load, limited by the budget of $30.00/h"
    assert lines[1].startswith("  516 of 800 streams (2,500 items/s), 64.5%, can be served within 400 ms: ")
    assert "  the whole load needs a budget of $31.20/h" in lines
    best = "best latency of the whole load within $30.00/h, pools and replica bounds: 455 ms (composed, not replayed)"
    assert f"  {best}" in lines
    assert not [line for line in lines if "proven" in line or "optimal" in line]


def test_where_no_money_helps_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    hopeless = replace(BAD, advice=Advice(required_budget_per_hour=None, best_latency_s=None))
    lines = printed(capsys, a_plan(hopeless, bound=None, price=None))
    assert lines[0] == "speech/captions: the SLA cannot be met for the whole load, whatever the budget"
    assert "  no budget is enough: the limit is a pool, the replica bounds or the SLA itself" in lines
    assert "  the whole load exceeds the capacity within $30.00/h, pools and replica bounds, at any latency" in lines


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (Limit(kind=LimitKind.POOL, name="gpu"), "cannot be met for the whole load, limited by pool gpu"),
        (
            Limit(kind=LimitKind.BOUNDS, name="decoder"),
            "cannot be met for the whole load, limited by the replica bounds of stage decoder",
        ),
        (Limit(kind=LimitKind.SLA), "cannot be met: no allocation within the replica bounds reaches 400 ms"),
        (None, "cannot be met for the whole load, limited by several limits together"),
    ],
)
def test_what_limits_is_named_in_words(capsys: pytest.CaptureFixture[str], limit: Limit | None, words: str) -> None:
    lines = printed(capsys, a_plan(replace(BAD, limited_by=limit, served_fraction=0.0), bound=None, price=None))
    assert lines[0] == f"speech/captions: the SLA {words}"
    assert lines[1].startswith("  none of 800 streams (2,500 items/s) can be served within 400 ms")


def test_a_cheaper_packing_is_told_as_what_would_change(capsys: pytest.CaptureFixture[str]) -> None:
    decoder = StageName("decoder")
    packing = Packing(
        replicas={(KEY, decoder, GPU): 4, (KEY, decoder, INFERENTIA): 2}, cost_per_hour=25.0, billed_per_hour=25.4
    )
    plan = replace(a_plan(), packing=packing)
    assert (
        "billed $26.50/h; with these replicas $25.40/h would be billed, and the shares would cost $25.00/h: "
        "decoder 5→4 on gpu, decoder 0→2 on inferentia"
    ) in printed(capsys, plan)
    assert document(plan, a_request(), solve_s=0.1)["packing"] == {
        "cost_per_hour": 25.0,
        "billed_per_hour": 25.4,
        "replicas": [
            {"pipeline": KEY, "stage": "decoder", "pool": "gpu", "replicas": 4},
            {"pipeline": KEY, "stage": "decoder", "pool": "inferentia", "replicas": 2},
        ],
    }


def test_moves_are_told_with_what_they_were_charged(capsys: pytest.CaptureFixture[str]) -> None:
    request = replace(
        a_request(), current={KEY: {(StageName("decoder"), GPU): 3, (StageName("decoder"), INFERENTIA): 1}}
    )
    moved = replace(GOOD, moved_replicas=3, switching_cost_per_hour=0.15)
    assert (
        "compared with the current replicas: decoder 3→5 on gpu, decoder 1→0 on inferentia "
        "(3 replicas, weighed as $0.15/h in the search)"
    ) in printed(capsys, a_plan(moved), request)


def test_a_plan_for_a_tighter_target_says_so_and_claims_no_more_than_that(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, a_plan(replace(GOOD, replay=replace(GOOD.replay, target_latency_s=0.38))))
    assert any("planned for 380 ms: in a replay, a cheaper plan exceeded 400 ms" in line for line in lines)
    assert "optimal: no plan under $24.81/h meets 380 ms" in lines


def test_a_plan_by_sums_that_replays_asked_for_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, a_plan(replace(GOOD, replay=replace(GOOD.replay, target_latency_s=0.4))))
    assert "optimal: no plan under $24.81/h meets 400 ms, with the stages' percentiles summed" in lines


def test_a_program_reads_the_same_answers() -> None:
    data = document(a_plan(BAD, bound=None, price=None), a_request(), solve_s=0.1)
    json.dumps(data, allow_nan=False)
    assert (data["feasible"], data["gap"], data["proven_optimal"], data["packing"]) == (False, None, False, None)
    (pipeline,) = data["pipelines"]
    assert {name: pipeline[name] for name in ("unit", "served_fraction", "admissible", "limited_by")} == {
        "unit": "Streams",
        "served_fraction": 0.645,
        "admissible": 516.0,
        "limited_by": "Budget",
    }
    assert {name: pipeline[name] for name in ("latency_error", "replayed_latency_s", "best_latency_s")} == {
        "latency_error": 0.06,
        "replayed_latency_s": 0.389,
        "best_latency_s": 0.455,
    }
    assert pipeline["required_budget_per_hour"] == 31.2
    assert pipeline["target_latency_s"] is None
    assert pipeline["stages"][0]["latency_error"] == 0.04


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.645, "64.5%"),
        (0.0, "0.0%"),
        (0.0003, "0.03%"),
        (0.000012, "0.0012%"),
        (1e-9, "under 0.0001%"),
        (1.0, "100.0%"),
    ],
)
def test_a_small_share_is_not_rounded_to_none(share: float, words: str) -> None:
    assert share_words(share) == words


def test_a_compute_budget_that_binds_is_named_with_its_amount(capsys: pytest.CaptureFixture[str]) -> None:
    request = a_request()
    team = GroupBudget(name="team", per_hour=2.0, pipelines=frozenset({KEY}))
    request = replace(request, problem=replace(request.problem, budgets=(team,)))
    answer = replace(
        GOOD,
        served_fraction=0.0,
        feasible=False,
        limited_by=Limit(kind=LimitKind.BUDGET, name="team"),
        advice=Advice(required_budget_per_hour=5.9, best_latency_s=None),
    )
    lines = printed(capsys, replace(a_plan(), pipelines=(answer,)), request)
    assert lines[0].endswith("limited by ComputeBudget team of $2.00/h")
    assert "  the whole load needs a budget of $5.90/h, and as much left of ComputeBudget team of $2.00/h" in lines
    within = "ComputeBudget team of $2.00/h, pools and replica bounds"
    assert f"  the whole load exceeds the capacity within {within}, at any latency" in lines


def test_the_source_of_a_price_that_is_looked_up_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    bundled = bundled_quote(AwsPrice(instance_types=("inf2.xlarge",), region="us-east-1"))
    assert bundled is not None
    declared = PriceQuote(per_hour=1.01, origin=PriceOrigin.DECLARED, as_of_s=None)
    request = replace(a_request(), quotes={GPU: declared, INFERENTIA: bundled})
    lines = printed(capsys, a_plan(), request)
    assert "price of gpu: price.perHour; AWS is not asked for a plan" in lines
    words = "bundled table of on-demand prices as of 2026-07-20 (inf2.xlarge)"
    assert f"price of inferentia: {words}; AWS is not asked for a plan" in lines
    told = {pool["name"]: pool for pool in document(a_plan(), request, solve_s=0.0)["pools"]}
    assert (told["gpu"]["price_source"], told["gpu"]["price_as_of"]) == ("Declared", None)
    assert (told["inferentia"]["price_source"], told["inferentia"]["price_as_of"]) == ("Bundled", "2026-07-20")


def test_a_plan_says_why_a_stage_runs_on_two_pools(capsys: pytest.CaptureFixture[str]) -> None:
    stage = replace(a_stage_plan("decoder", (GPU, 2), (INFERENTIA, 1), error=0.04), mixing_saves_per_hour=1.5)
    request = a_request()
    spec = request.specs[KEY]
    free = replace(request, specs={KEY: replace(spec, scaling=replace(spec.scaling, mixing=Mixing.FREE))})
    lines = printed(capsys, a_plan(replace(GOOD, stages=(stage,))), free)
    assert "decoder runs on gpu and inferentia: cheaper together than on one of them alone, saves $1.50/h" in lines
    assert lines[-1].endswith("plans considered: a stage uses any two of its pools together, more only as overflow)")
