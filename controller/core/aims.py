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
    short = _Short(snapshot, ledger)
    aims = {case.key: _aim(case, fleet, snapshot, policy, pressed=short.presses(case)) for case in cases}
    for case in cases:
        if case.acting:
            ledger.ask(case.key, aims[case.key].final)
    short = _Short(snapshot, ledger)
    for case in cases:
        if case.acting and short.presses(case):
            aims[case.key] = _aim(case, fleet, snapshot, policy, pressed=True)
    return aims


def _aim(case: Assessment, fleet: FleetPlan, snapshot: Snapshot, policy: Policy, *, pressed: bool) -> Aim:
    plan, problem = fleet.pipelines[case.key], fleet.problems[case.key]
    return find_aim(case, plan, problem, snapshot.pools, policy, pressed=pressed)


class _Short:
    """What is asked for more than there is of, as the ledger says now."""

    def __init__(self, snapshot: Snapshot, ledger: Ledger) -> None:
        self._ledger = ledger
        self._fleet = ledger.above_cap(ledger.cost_per_hour())
        # Nodes of a pool without a ceiling that are not ready for a moment press nobody.
        self._pools = {
            name for name, pool in snapshot.pools.items() if pool.spec.instances is not None and ledger.overfull(name)
        }

    def presses(self, case: Assessment) -> bool:
        """Whether the pipeline takes part in asking for more than there is of a pool or a budget."""
        if self._fleet or self._ledger.above_cap(self._ledger.cost_per_hour(case.key), case.key):
            return True
        return any(count and pool in self._pools for (_, pool), count in case.current.items())
