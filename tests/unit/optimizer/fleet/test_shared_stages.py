"""Stages of several pipelines: one allocation for all users, each of them within its SLA and its budget."""

from dataclasses import replace

import pytest

from optimizer.allocate import allocate
from optimizer.fleet.shared_stages import settle
from optimizer.model import (
    Demand,
    Pipeline,
    PipelineKey,
    Placement,
    Pool,
    PoolName,
    Problem,
    ServiceLaw,
    Sharing,
    Sla,
    Stage,
    StageName,
)
from optimizer.plan import Limit, LimitKind, Plan

OWNER, BORROWER, OTHER = PipelineKey("n/owner"), PipelineKey("n/borrower"), PipelineKey("n/other")
GPU = PoolName("gpu")
ENCODER, ASR = StageName("encoder"), StageName("asr")


def on_gpu(fixed_s: float = 0.05, bounds: tuple[int, int] = (0, 12)) -> Placement:
    law = ServiceLaw(fixed_s=fixed_s, cv=0.3)
    return Placement(pool=GPU, service=law, min_replicas=bounds[0], max_replicas=bounds[1])


def user(
    key: PipelineKey,
    rate_rps: float,
    other_rps: float,
    *,
    sla_s: float = 0.5,
    priority: int = 0,
    budget: float | None = None,
    bounds: tuple[int, int] = (0, 12),
) -> Pipeline:
    """Return a pipeline of a shared stage, which `OWNER` declares, and a stage of its own."""
    name = ENCODER if key == OWNER else ASR
    total = rate_rps + other_rps
    sharing = Sharing(
        owner=OWNER,
        stage=ENCODER,
        borrowed=key != OWNER,
        cost_share=rate_rps / total if total else 0.5,
        other_rps=other_rps,
    )
    return Pipeline(
        key=key,
        stages=(
            Stage(name=name, placements=(on_gpu(bounds=bounds),), sharing=sharing),
            Stage(name=StageName("own"), placements=(on_gpu(0.02),), after=(name,)),
        ),
        demand=Demand(entry_rate_rps=rate_rps),
        sla=Sla(latency_s=sla_s),
        priority=priority,
        budget_per_hour=budget,
    )


def problem(*pipelines: Pipeline, instances: int = 40, budget: float | None = None) -> Problem:
    pools = {GPU: Pool(name=GPU, price_per_hour=2.0, instances=instances)}
    return Problem(pipelines=pipelines, pools=pools, budget_per_hour=budget)


def replicas(plan: Plan, key: PipelineKey) -> list[int]:
    return list(plan.of(key).replicas().values())


def test_all_users_have_the_same_replicas_which_are_counted_once() -> None:
    plan = allocate(problem(user(OWNER, 20.0, 60.0), user(BORROWER, 60.0, 20.0)))
    (encoder, own), (asr, other) = replicas(plan, OWNER), replicas(plan, BORROWER)
    assert plan.feasible
    assert encoder == asr >= 80 * 0.05
    assert plan.pools[0].instances == encoder + own + other
    assert plan.cost_per_hour == pytest.approx(2 * (encoder + own + other))
    assert plan.of(OWNER).cost_per_hour == pytest.approx(2 * (encoder / 4 + own))


def test_the_load_of_the_others_counts() -> None:
    alone = allocate(problem(user(OWNER, 20.0, 0.0)))
    with_others = allocate(problem(user(OWNER, 20.0, 60.0)))
    assert replicas(with_others, OWNER)[0] > replicas(alone, OWNER)[0]
    assert replicas(with_others, OWNER)[1] == replicas(alone, OWNER)[1]


def test_the_tightest_sla_decides() -> None:
    loose = allocate(problem(user(OWNER, 20.0, 20.0), user(BORROWER, 20.0, 20.0)))
    tight = allocate(problem(user(OWNER, 20.0, 20.0), user(BORROWER, 20.0, 20.0, sla_s=0.13)))
    assert tight.feasible
    assert replicas(tight, OWNER)[0] > replicas(loose, OWNER)[0]


def test_a_stage_whose_owner_is_not_planned_stays_as_it_runs_and_takes_no_capacity() -> None:
    borrower = user(BORROWER, 20.0, 20.0, bounds=(4, 4))
    assert settle(problem(borrower), allocate, allocate) is None
    plan = allocate(problem(borrower, instances=2))
    assert plan.feasible
    assert replicas(plan, BORROWER)[0] == 4
    assert plan.pools[0].instances == replicas(plan, BORROWER)[1]


@pytest.mark.parametrize(("first", "second"), [(0, 0), (5, 0), (0, 5)])
def test_where_not_all_can_be_served_priority_decides_and_equals_share(first: int, second: int) -> None:
    users = user(OWNER, 60.0, 60.0, priority=first), user(BORROWER, 60.0, 60.0, priority=second)
    plan = allocate(problem(*users, instances=7))
    owner, borrower = plan.of(OWNER), plan.of(BORROWER)
    assert plan.pools[0].instances <= 7
    assert {owner.limited_by, borrower.limited_by} <= {Limit(kind=LimitKind.POOL, name="gpu"), None}
    if first == second:
        assert owner.served_fraction == pytest.approx(borrower.served_fraction, abs=0.2)
        assert 0.2 < owner.served_fraction < 1
    else:
        more, less = (owner, borrower) if first > second else (borrower, owner)
        assert more.served_fraction == 1
        assert 0 < less.served_fraction < 1


def test_what_limits_one_user_alone_leaves_the_others_their_share() -> None:
    plan = allocate(problem(user(OWNER, 20.0, 60.0), user(BORROWER, 60.0, 20.0, budget=4.0)))
    assert plan.of(OWNER).feasible
    assert plan.of(BORROWER).limited_by == Limit(kind=LimitKind.BUDGET)
    assert plan.of(BORROWER).cost_per_hour <= 4.0 + 1e-9


def test_pipelines_that_share_nothing_are_planned_beside_it() -> None:
    other = replace(user(OTHER, 30.0, 0.0), stages=(Stage(name=ENCODER, placements=(on_gpu(),)),))
    users = user(OWNER, 20.0, 20.0), user(BORROWER, 20.0, 20.0)
    roomy = allocate(problem(*users, other))
    assert roomy.feasible
    assert replicas(roomy, OTHER) == replicas(allocate(problem(other)), OTHER)
    short = allocate(problem(*users, other, instances=5))
    assert not short.feasible
    assert short.pools[0].instances <= 5
    assert replicas(short, OWNER)[0] == replicas(short, BORROWER)[0]
