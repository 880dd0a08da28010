"""Work is charged to accounts; a pipeline that exhausts its own is planned coarsely, and the others as ever."""

from dataclasses import replace

import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.allocate import allocate
from optimizer.model import Pipeline, Placement, Problem
from optimizer.reports.certificate import certified_plan
from optimizer.runtime.effort import LEAST, Account, Charges, Effort

STAGES, PLACEMENTS = 9, 4
SHAPES = ("in series", "each after all before", "side by side")


def inputs(shape: str, stage: int) -> list[str]:
    if stage == 0:
        return []
    if shape == "in series":
        return [f"s{stage - 1}"]
    if shape == "side by side" and stage < STAGES - 1:
        return ["s0"]
    return [f"s{before}" for before in range(int(shape == "side by side"), stage)]


def heavy(shape: str, budget: float = 9.0) -> Pipeline:
    def placements(stage: int) -> list[Placement]:
        return [
            on(f"p{k}", service=(0.01 + 0.003 * ((7 * stage + 3 * k) % 11), 0.0), bounds=(0, 60))
            for k in range(PLACEMENTS)
        ]

    stages = [a_stage(f"s{stage}", *placements(stage), after=inputs(shape, stage)) for stage in range(STAGES)]
    return a_pipeline(*stages, key="heavy", rate_rps=120.0, sla_s=0.5, budget=budget)


def problem_of(*own: Pipeline) -> Problem:
    sizes = {f"p{k}": (0.5 + 0.3 * k, 200) for k in range(PLACEMENTS)}
    return a_problem(*own, where=pools(**sizes, gpu=(1.0, 50)))


LIGHT = a_pipeline(a_stage("asr", on("gpu")), key="light", rate_rps=90.0, sla_s=0.4)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pipeline_that_exhausts_its_account_is_planned_coarsely_and_no_other_is(shape: str) -> None:
    effort = Effort(own={"heavy": Account(limit=10_000), "light": Account(limit=LEAST)}, joint=Account(limit=LEAST))
    problem = replace(problem_of(heavy(shape), LIGHT), effort=effort)
    plan = certified_plan(problem, advice=True)
    assert plan.of(heavy(shape).key).coarse
    assert plan.of(LIGHT.key) == allocate(problem_of(LIGHT)).of(LIGHT.key)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_coarse_plan_serves_the_load_within_sla_and_budget(shape: str) -> None:
    effort = Effort(own={"heavy": Account(limit=0)}, joint=Account(limit=0))
    full = allocate(problem_of(heavy(shape, 80.0))).of(heavy(shape).key)
    coarse = allocate(replace(problem_of(heavy(shape, 80.0)), effort=effort)).of(heavy(shape).key)
    assert full.feasible
    assert coarse.feasible
    assert coarse.latency_s is not None
    assert coarse.latency_s <= 0.5
    assert coarse.cost_per_hour <= 1.25 * full.cost_per_hour


def test_without_accounts_and_with_full_ones_the_plan_is_the_same() -> None:
    problem = problem_of(heavy("side by side"), LIGHT)
    effort = Effort.shared(10**12, ["heavy", "light"])
    assert allocate(replace(problem, effort=effort)) == allocate(problem)
    assert effort.own["heavy"].spent > effort.own["light"].spent > 0


def test_shares_are_equal_and_have_a_least() -> None:
    effort = Effort.shared(100 * LEAST, ["a", "b"])
    assert {key: account.limit for key, account in effort.own.items()} == {"a": 50 * LEAST, "b": 50 * LEAST}
    assert effort.joint.limit == 100 * LEAST
    assert Effort.shared(10, ["a", "b"]).own["a"].limit == LEAST


def test_every_charge_is_heard() -> None:
    heard: list[None] = []
    account = Account(limit=10, beat=lambda: heard.append(None))
    account.charge(9)
    assert (account.left, account.exhausted) == (1, False)
    account.charge(2)
    assert (account.left, account.exhausted, len(heard)) == (0, True, 2)


def test_charges_are_repeated_unless_they_exhaust_an_account() -> None:
    effort = Effort(own={"a": Account(limit=10)}, joint=Account(limit=100))
    charges = Charges(effort, ["a"])
    effort.own["a"].charge(6)
    assert charges.made() == (6, 0)
    assert not Charges(effort, ["a"]).repeat((6, 0))
    assert effort.own["a"].spent == 6
    assert Charges(effort, ["a"]).repeat((3, 50))
    assert (effort.own["a"].spent, effort.joint.spent) == (9, 50)
