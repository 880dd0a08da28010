"""Bounds: what the mechanisms of a cycle allow for the replicas of a pipeline, each with its reason and its precedence.

A mechanism (`controller.core.bounds`) is a pure function that states bounds. One function resolves all bounds of a
pipeline into limits (`controller.core.bounds.resolution`), and plans are made inside these.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from math import inf

from controller.core.state.carry_over import DrainMemory, PlacementFailure, RuleMemory
from controller.core.state.decision import ChangeReason, Drain, Hold, RuleState, Skew
from optimizer.model import PlacementKey, PlacementName, StageName


class Level(IntEnum):
    """The precedence of bounds: the one with the lower number is never broken for one with a higher number."""

    NOT_OURS = 1
    CAP = 2
    PERSON = 3
    MISSING_DATA = 4
    DECLARED = 5
    SLA = 6
    FLOOR = 7
    COST = 8
    STEP = 9

    @property
    def reason(self) -> str:
        """Return why this level has its place, as one sentence for people."""
        return _REASONS[self]


_REASONS = {
    Level.NOT_OURS: "What Sluice cannot or may not write stays as it is, whatever else is asked for.",
    Level.CAP: "Budgets and the capacity of pools are never exceeded: money that is spent and nodes that do not exist "
    "cannot be had by asking for more.",
    Level.PERSON: "A person who pins replicas knows something that metrics do not show.",
    Level.MISSING_DATA: "Missing data is never read as no load: no replica is removed because nothing is known of it.",
    Level.DECLARED: "`replicas.min`, `replicas.max` and `maxWer` are promises of the spec. They outrank the SLA.",
    Level.SLA: "The plan meets the SLA at the planned demand, and a measured miss removes nothing.",
    Level.FLOOR: "Floors of rules and of measurements are met with what the SLA leaves of budgets and pools.",
    Level.COST: "Of what is left, the cheapest: savings yield to everything else.",
    Level.STEP: "How far one cycle goes towards the plan.",
}


class Evidence(Enum):
    """Whose evidence a bound rests on: who has to be right for the bound to be right."""

    PLACEMENT = "this placement"
    PIPELINE = "this pipeline"
    OTHER_PIPELINE = "another pipeline"
    POOL = "the pool"
    PROVIDER = "the provider"
    PERSON = "a person"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """What states bounds: its name, its level, and whose evidence they rest on unless a bound says otherwise.

    `does` describes it in one line for people. `planned` says that plans are made inside its bounds. They are not for
    what only withholds writes (the plan then says what would be done), nor for what limits one step of the roll-out.
    """

    name: str
    level: Level
    evidence: Evidence
    does: str
    planned: bool = True

    def on(
        self,
        where: PlacementKey | StageName,
        *,
        least: int | None = None,
        most: int | None = None,
        hold: Hold | None = None,
        change: ChangeReason | None = None,
        since_s: float | None = None,
        until_s: float | None = None,
        evidence: Evidence | None = None,
    ) -> "Bound":
        """Return a bound of this mechanism on a placement, or on a whole stage."""
        stage, placement = where if isinstance(where, tuple) else (where, None)
        return Bound(
            mechanism=self,
            stage=stage,
            placement=placement,
            least=least,
            most=most,
            hold=hold,
            change=change,
            since_s=since_s,
            until_s=until_s,
            stated_evidence=evidence,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least and the most replicas of a stage, or of its `placement`; None: not limited on that side.

    `hold` is what the status says while the bound holds a change back, and `change` the reason of a change that the
    bound makes; None where the bound has no such effect. The bound has been in force since `since_s` and is until
    `until_s`, None: not known.
    """

    mechanism: Mechanism
    stage: StageName
    placement: PlacementName | None = None
    least: int | None = None
    most: int | None = None
    hold: Hold | None = None
    change: ChangeReason | None = None
    since_s: float | None = None
    until_s: float | None = None
    stated_evidence: Evidence | None = None

    @property
    def level(self) -> Level:
        """Return the level of precedence."""
        return self.mechanism.level

    @property
    def evidence(self) -> Evidence:
        """Return whose evidence the bound rests on."""
        return self.stated_evidence or self.mechanism.evidence

    @property
    def key(self) -> PlacementKey | None:
        """Return the placement, None for a bound of a whole stage."""
        return None if self.placement is None else (self.stage, self.placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the limits of a placement: the count, and the bound that it comes from, None: it is not limited."""

    count: float
    bound: Bound | None = None


NO_LEAST, NO_MOST = Side(count=0), Side(count=inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A bound that is not kept in full, because of a stronger one."""

    bound: Bound
    to: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the bounds of a pipeline allow together: the least and the most replicas of every placement and stage.

    A placement that is not in `lower` or `upper` is not limited on that side. `floors` has the least replicas of stages
    over all their placements. `lost` are the bounds that are not kept in full.
    """

    lower: Mapping[PlacementKey, Side] = field(default_factory=dict)
    upper: Mapping[PlacementKey, Side] = field(default_factory=dict)
    floors: Mapping[StageName, Side] = field(default_factory=dict)
    lost: tuple[Lost, ...] = ()

    def least(self, key: PlacementKey) -> int:
        """Return the least replicas of a placement."""
        return int(self.lower.get(key, NO_LEAST).count)

    def most(self, key: PlacementKey) -> float:
        """Return the most replicas of a placement, infinite where nothing limits them."""
        return self.upper.get(key, NO_MOST).count

    def clamped(self, key: PlacementKey, count: int) -> int:
        """Return the number of replicas of a placement within the limits that is nearest to `count`."""
        return int(max(self.least(key), min(count, self.most(key))))


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of one pipeline that are known before its plan, and what follows from them.

    The plan is made inside `limits`. `reach` are the limits without bounds that only save money: floors are met within
    these, and so is the SLA where it needs them. `kept` has the replicas that plans keep where budgets and pools allow
    it, because data is missing. `rules` has every threshold rule with its reading, and `rule_memories` their state for
    the next cycle. `failures` has the placements that fail although their pool delivers, and `uncreated_since_s` since
    when desired replicas have not been created. `skews` has the stages whose sessions are on too few replicas, `drains`
    the crowded replicas whose sessions may be cut, and `drain_memories` what the next cycle knows of that. `without`
    names a mechanism that is left out, for people who ask what it does.
    """

    stated: tuple[Bound, ...] = ()
    limits: Limits = NO_LIMITS
    reach: Limits = NO_LIMITS
    kept: Mapping[PlacementKey, int] = field(default_factory=dict)
    rules: tuple[RuleState, ...] = ()
    rule_memories: Mapping[tuple[StageName, str], RuleMemory] = field(default_factory=dict)
    failures: Mapping[PlacementKey, PlacementFailure] = field(default_factory=dict)
    uncreated_since_s: Mapping[PlacementKey, float] = field(default_factory=dict)
    skews: tuple[Skew, ...] = ()
    drains: tuple[Drain, ...] = ()
    drain_memories: Mapping[StageName, DrainMemory] = field(default_factory=dict)
    without: str | None = None

    def allowed(self, bounds: Iterable[Bound]) -> list[Bound]:
        """Return `bounds` without those of the mechanism that is left out."""
        return [bound for bound in bounds if bound.mechanism.name != self.without]

    def spares(self) -> Iterator[Bound]:
        """Yield the declared minimums of placements that are the strongest reason for their least count."""
        for side in self.reach.lower.values():
            if side.bound is not None and side.bound.level is Level.DECLARED and side.bound.key is not None:
                yield side.bound

    def of(self, *mechanisms: Mechanism) -> Iterator[Bound]:
        """Yield the bounds that one of `mechanisms` has stated."""
        return (bound for bound in self.stated if bound.mechanism in mechanisms)


NO_BOUNDS = Bounds()
