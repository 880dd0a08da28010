"""Replicas that a person has pinned by annotation, as far as budgets and pools have room for them.

`controller.core.bounds.overrides` finds how many fit.
"""

from collections.abc import Iterator, Mapping

from controller.core.assess.assessment import Assessment
from controller.core.messages import details
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.decision import ChangeReason, Hold, HoldReason
from optimizer.model import PlacementKey

PIN = Mechanism(
    name="pin",
    level=Level.PERSON,
    evidence=Evidence.PERSON,
    does="a pinned placement has the pinned replicas, or those of them that budgets and the pool have room for",
)


def bounds(assessment: Assessment) -> Iterator[Bound]:
    """Yield the bounds of the pinned placements."""
    for key, pin in assessment.spec.overrides.pins.items():
        yield PIN.on(key, least=pin.fits, most=pin.fits, change=ChangeReason.PINNED, until_s=pin.until_s)


def holds(assessment: Assessment, replicas: Mapping[PlacementKey, int]) -> Iterator[Hold]:
    """Yield a hold for every pin, of which `replicas` are possible, and for every invalid part of an annotation."""
    for key, pin in assessment.spec.overrides.pins.items():
        detail = details.pinned(pin, replicas[key])
        yield Hold(reason=HoldReason.PINNED, stage=key[0], placement=key[1], until_s=pin.until_s, detail=detail)
    for problem in assessment.spec.overrides.problems:
        yield Hold(reason=HoldReason.INVALID_ANNOTATION, detail=problem)
