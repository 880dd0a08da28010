"""Where every pipeline is to go: its own aim, unless what it could do without is needed by another."""

from collections.abc import Mapping, Sequence

from controller.core.assessment import Assessment
from controller.core.fleet import FleetPlan
from controller.core.guards import Aim, find_aim
from controller.core.ledger import Ledger
from controller.core.policy import Policy
from controller.core.snapshot import Snapshot
from optimizer.model import PipelineKey


def find_aims(
    cases: Sequence[Assessment], fleet: FleetPlan, snapshot: Snapshot, policy: Policy
) -> Mapping[PipelineKey, Aim]:
    """Return the aim of every pipeline that could be planned.

    Tolerance is for money: a pipeline that holds more than its plan of what is scarce follows its plan.
    """
    ledger = Ledger(snapshot.pipelines, snapshot.pools, policy.budget_per_hour)
    aims = {case.key: _aim(case, fleet, snapshot, policy, pressed=_pressed(case, snapshot, ledger)) for case in cases}
    for case in cases:
        if case.acting:
            ledger.ask(case.key, aims[case.key].final)
    for case in cases:
        if case.acting and _pressed(case, snapshot, ledger):
            aims[case.key] = _aim(case, fleet, snapshot, policy, pressed=True)
    return aims


def _aim(case: Assessment, fleet: FleetPlan, snapshot: Snapshot, policy: Policy, *, pressed: bool) -> Aim:
    plan, problem = fleet.pipelines[case.key], fleet.problems[case.key]
    return find_aim(case, plan, problem, snapshot.pools, policy, pressed=pressed)


def _pressed(case: Assessment, snapshot: Snapshot, ledger: Ledger) -> bool:
    """Whether the pipeline takes part in asking for more than there is of a pool or a budget.

    Nodes of a pool without a ceiling that are not ready for a moment press nobody.
    """
    if any(ledger.above_cap(ledger.cost_per_hour(scope), scope) for scope in (case.key, None)):
        return True
    used = {pool for (_, pool), count in case.current.items() if count and pool in snapshot.pools}
    return any(snapshot.pools[pool].spec.instances is not None and ledger.overfull(pool) for pool in used)
