import pytest

from controller.core.messages import details
from controller.core.state.carry_over import Conflict
from controller.core.state.snapshot import PendingReplica
from optimizer.model import PoolName
from optimizer.plan import Limit, LimitKind
from profiler.samples import Absence, AbsenceReason, Quantity

GPU = PoolName("gpu")
CHANGES = Conflict(changes=3, changed_at_s=0.0, written=5, found=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (details.conflict(GPU, "ScaledObject/asr"), "gpu: ScaledObject/asr sets the replicas too"),
        (
            details.conflict(GPU, CHANGES),
            "gpu: another controller sets the replicas too: 2 found after 5 written, 3 times so far",
        ),
        (details.on_placement(GPU, "not found"), "gpu: not found"),
        (details.no_capacity(GPU, Limit(kind=LimitKind.POOL, name="gpu")), "no capacity on gpu within Pool/gpu"),
        (details.no_fleet_budget(GPU), "no capacity on gpu within the budget of the fleet"),
        (
            details.missing_reading(GPU, Quantity.ARRIVAL_RATE, Absence(reason=AbsenceReason.STALE)),
            "arrivalRate on gpu: Stale",
        ),
        (details.invalid_demand(-1.0), "demand.query returned -1.0: must be from 0 to 1e+24"),
        (details.pending(PendingReplica(name="asr-1", since_s=0.0, reason="no nodes")), "asr-1: no nodes"),
    ],
)
def test_a_detail_names_what_it_concerns_and_why(text: str, expected: str) -> None:
    assert text == expected
