"""Shards agree on a pool with real decisions: nothing is exceeded, and the result is close to that of one planner."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from builders import a_placement, a_pool, a_scaling, a_spec, a_stage, a_state, pools
from shard_worlds import Fleet

from controller.core.cycle import decide
from controller.core.state.policy import Policy
from controller.core.state.shards import MILLS, committed, shard_of
from controller.core.state.snapshot import BudgetState, Orphan, PipelineState
from controller.core.state.spec import BudgetSpec, LabelSelector, Target
from controller.kube.gateway import BUDGETS, POOLS, Failed
from controller.kube.shard_entries import entries_from
from controller.kube.store import KeptResource, kept_resource
from controller.resources.pool import MAX_ORPHANS
from optimizer.model import PipelineKey, PoolName, StageName

ASR = "asr"


def a_pipeline(name: str, demand: float, *, priority: int = 0, elsewhere: bool = False) -> PipelineState:
    """One stage on pool `inf`, with `elsewhere` also on the dearer pool `gpu`."""
    placements = [a_placement("inf")] + ([a_placement("gpu")] if elsewhere else [])
    spec = a_spec(a_stage(ASR, *placements), name=name, priority=priority, scaling=a_scaling(down_s=0.0))
    return a_state(spec, demand=demand, replicas={(StageName(ASR), PoolName("inf")): 0})


def a_fleet_of(instances: int, *shards: Sequence[PipelineState], gpus: int = 0) -> Fleet:
    inf = a_pool("inf", price=1.0, instances=instances, ready=instances)
    return Fleet(shards, pools(inf, a_pool("gpu", price=4.0, instances=gpus, ready=gpus)))


@pytest.fixture
def fleets() -> Iterator[list[Fleet]]:
    made: list[Fleet] = []
    yield made
    for fleet in made:
        fleet.close()


def served(fleet: Fleet) -> dict[str, float]:
    return {
        own.spec.name: own.plan.served_fraction
        for decision in fleet.cycles(1)
        for own in decision.pipelines
        if own.plan is not None
    }


def one_planner(fleet: Fleet, states: Sequence[PipelineState], cycles: int = 8) -> Mapping[str, float]:
    """Return what one planner of all pipelines would serve of each, and what that costs."""
    alone = Fleet([states], fleet.pools)
    try:
        shard = alone.shards[0]
        decision = decide(shard.snapshot, Policy(advice=False))
        assert decision.plan is not None
        return {own.key.partition("/")[2]: own.served_fraction for own in decision.plan.pipelines}
    finally:
        alone.close()


def test_what_suffices_for_all_is_served_within_a_few_cycles(fleets: list[Fleet]) -> None:
    fleets.append(a_fleet_of(20, [a_pipeline("one", 60.0)], [a_pipeline("two", 60.0)]))
    fleets[0].cycles(5)
    assert served(fleets[0]) == {"one": 1.0, "two": 1.0}


def test_a_shard_whose_load_rises_gets_the_room_of_the_other(fleets: list[Fleet]) -> None:
    fleets.append(fleet := a_fleet_of(20, [a_pipeline("one", 20.0)], [a_pipeline("two", 20.0)]))
    fleet.cycles(4)
    fleet.load(PipelineKey("speech/two"), 200.0)
    fleet.cycles(10)
    assert served(fleet)["two"] == 1.0


def test_a_full_pool_is_shared_as_by_one_planner(fleets: list[Fleet]) -> None:
    one, two = a_pipeline("one", 200.0), a_pipeline("two", 100.0)
    fleets.append(fleet := a_fleet_of(12, [one], [two]))
    fleet.cycles(30)
    found, alone = served(fleet), one_planner(fleet, [one, two])
    assert sum(found[name] * load for name, load in (("one", 200), ("two", 100))) == pytest.approx(
        sum(alone[name] * load for name, load in (("one", 200), ("two", 100))), rel=0.1
    )
    assert abs(found["one"] - found["two"]) <= 0.15


def test_a_full_pool_goes_to_the_higher_priority(fleets: list[Fleet]) -> None:
    fleets.append(fleet := a_fleet_of(12, [a_pipeline("low", 200.0)], [a_pipeline("high", 100.0)]))
    fleet.cycles(12)
    fleet.shards[1].snapshot = replace(
        fleet.shards[1].snapshot,
        pipelines=tuple(
            replace(state, spec=replace(state.spec, priority=10)) for state in fleet.shards[1].snapshot.pipelines
        ),
    )
    fleet.cycles(30)
    assert served(fleet)["high"] == 1.0


def test_what_would_save_more_gets_the_cheap_pool(fleets: list[Fleet]) -> None:
    """Both are served in full; `two` runs on the dearer pool until `one`, which needs less, has given it back."""
    fleets.append(
        fleet := a_fleet_of(
            10, [a_pipeline("one", 150.0, elsewhere=True)], [a_pipeline("two", 20.0, elsewhere=True)], gpus=20
        )
    )
    fleet.cycles(12)
    assert served(fleet) == {"one": 1.0, "two": 1.0}
    assert fleet.used("inf") == 10


def test_the_load_of_a_quiet_fleet_writes_nothing_but_renewals(fleets: list[Fleet]) -> None:
    fleets.append(fleet := a_fleet_of(20, [a_pipeline("one", 60.0)], [a_pipeline("two", 60.0)]))
    fleet.cycles(8)
    fleet.statuses.writes.clear()
    fleet.cycles(4)  # a minute
    assert len(fleet.statuses.writes) <= 2 * len(fleet.pools)


def test_while_an_entry_cannot_be_written_nothing_is_added_and_nothing_claimed(fleets: list[Fleet]) -> None:
    fleets.append(fleet := a_fleet_of(20, [a_pipeline("one", 20.0)], [a_pipeline("two", 20.0)]))
    fleet.cycles(4)
    before = fleet.shards[1].used("inf")
    allowed = {each.shard: each.agreed for each in fleet.entries("inf")}
    fleet.statuses.errors["inf"] = Failed("500")
    fleet.load(PipelineKey("speech/two"), 2000.0)
    fleet.cycles(3)
    assert before <= fleet.shards[1].used("inf") <= allowed[1]
    assert fleet.shards[1].claims.postponed
    fleet.statuses.errors.clear()
    fleet.cycles(8)
    assert fleet.shards[1].used("inf") > allowed[1]
    assert not fleet.shards[1].claims.postponed


def kept(name: str) -> KeptResource:
    return kept_resource({"metadata": {"name": name, "namespace": "speech", "uid": f"uid-{name}", "generation": 1}})


def test_only_pipelines_that_use_what_has_no_entry_wait_for_their_claim(fleets: list[Fleet]) -> None:
    gpu = a_spec(a_stage(ASR, a_placement("gpu")), name="two")
    own = [a_pipeline("one", 20.0), a_state(gpu, demand=20.0)]
    fleets.append(fleet := a_fleet_of(20, own, [a_pipeline("three", 20.0)], gpus=20))
    fleet.statuses.errors["inf"] = Failed("500")
    fleet.cycles(1)
    claims = fleet.shards[0].claims
    assert claims.waits(kept("one"))
    assert claims.waits(kept("not assessed"))
    assert not claims.waits(kept("two"))


def test_pipelines_of_a_budget_without_an_entry_wait_for_their_claim(fleets: list[Fleet]) -> None:
    budgets = [
        BudgetState(
            spec=BudgetSpec(name=name, uid=name, generation=1, selector=LabelSelector(labels={}), per_hour=10.0),
            namespaces=frozenset({namespace}),
        )
        for name, namespace in (("team", "speech"), ("other", "elsewhere"))
    ]
    inf = pools(a_pool("inf", price=1.0, instances=100, ready=100))
    fleets.append(fleet := Fleet([[a_pipeline("one", 20.0)], []], inf, budgets))
    fleet.statuses.errors["other"] = Failed("500")
    fleet.cycles(1)
    assert not fleet.shards[0].claims.waits(kept("one"))
    fleet.statuses.errors["team"] = Failed("500")
    fleet.load(PipelineKey("speech/one"), 40.0)
    fleet.cycles(2)
    assert fleet.shards[0].claims.waits(kept("one"))


def with_orphans(fleet: Fleet, count: int) -> None:
    """Let each shard have `count` workloads on pool `inf` that no pipeline has any more, in a namespace of its own."""
    for shard in fleet.shards:
        namespace = next(
            name
            for name in (f"gone-{number}" for number in range(100))
            if shard_of(name, len(fleet.shards)) == shard.shard.index
        )
        orphans = tuple(
            Orphan(
                namespace=namespace,
                target=Target(api_version="apps/v1", kind="Deployment", name=f"asr-{number}"),
                pipeline=PipelineKey(f"{namespace}/old-{number}"),
                pool=PoolName("inf"),
                per_instance=1,
                replicas=1,
            )
            for number in range(count)
        )
        inf = shard.snapshot.pools[PoolName("inf")]
        shard.snapshot = replace(
            shard.snapshot, pools={**shard.snapshot.pools, inf.spec.name: replace(inf, orphans=orphans)}
        )


def writes_of_a_minute(fleet: Fleet) -> int:
    fleet.statuses.writes.clear()
    fleet.cycles(4)
    return len(fleet.statuses.writes)


@pytest.mark.parametrize("count", [10, 80, 150])
def test_orphans_beyond_what_a_status_may_have_are_left_out_and_stop_no_shard(fleets: list[Fleet], count: int) -> None:
    fleets.append(fleet := a_fleet_of(20, [a_pipeline("one", 20.0)], [a_pipeline("two", 20.0)]))
    with_orphans(fleet, count)
    fleet.cycles(8)
    stored = fleet.statuses.get(POOLS, None, "inf")["status"]["orphans"]
    assert len(stored) == min(2 * count, MAX_ORPHANS)
    of_first = sum(shard_of(each["namespace"], 2) == 0 for each in stored)
    assert 0.3 * len(stored) <= of_first <= 0.7 * len(stored)
    assert not any(shard.claims.postponed for shard in fleet.shards)
    assert writes_of_a_minute(fleet) <= 2 * len(fleet.pools)


def test_the_entry_is_written_without_orphans_that_the_server_refuses(fleets: list[Fleet]) -> None:
    fleets.append(fleet := a_fleet_of(20, [a_pipeline("one", 20.0)], [a_pipeline("two", 20.0)]))
    fleet.statuses.most_orphans = 0
    with_orphans(fleet, 1)
    fleet.cycles(8)
    fleet.load(PipelineKey("speech/two"), 200.0)
    fleet.cycles(10)
    assert served(fleet)["two"] == 1.0
    assert not any(shard.claims.postponed for shard in fleet.shards)
    assert writes_of_a_minute(fleet) <= 2 * len(fleet.pools)


def test_a_budget_over_two_shards_is_never_exceeded_and_is_shared_by_demand(fleets: list[Fleet]) -> None:
    spec = BudgetSpec(name="team", uid="uid-team", generation=1, selector=LabelSelector(labels={}), per_hour=10.0)
    budget = BudgetState(spec=spec, namespaces=frozenset({"speech"}))
    inf = pools(a_pool("inf", price=1.0, instances=100, ready=100))
    fleet = Fleet([[a_pipeline("one", 200.0)], [a_pipeline("two", 20.0)]], inf, [budget])
    fleets.append(fleet)

    def spent() -> float:
        return sum(shard.used("inf") for shard in fleet.shards) * 1.0

    for _ in range(12):
        fleet.cycles(1)
        assert spent() <= 10.0
    found = served(fleet)
    assert spent() >= 9.0
    assert abs(found["one"] - found["two"]) <= 0.2  # the same priority
    entries = entries_from(fleet.statuses.get(BUDGETS, None, "team")["status"], MILLS)
    assert committed(entries) <= 10 * MILLS
