"""The numbers of a placement that measurements have shown: how they are written, read, and used for a plan.

`sluice explain -o json` writes them, `sluice plan --learned` reads them.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace

from controller.core.codec import InvalidRecord, Json, decode, encode
from controller.core.state.spec import PipelineSpec, PlacementSpec
from optimizer.model import PipelineKey, PlacementKey, ServiceLaw, StageName, placement_fields, placement_name, require
from profiler.law import fitted_law, with_prefill
from profiler.stages import Learned


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPlacement:
    """What is known of a placement: service law, start-up time in seconds and session slots per replica.

    The service law is that of `ServiceLaw`, field by field. `relative_error` is its error bar, as a share of the
    service time. A value that is None is not known.
    """

    fixed_s: float
    per_item_s: float
    cv: float
    startup_s: float | None
    session_slots: int | None
    relative_error: float | None
    floor_s: float = 0.0
    points: tuple[tuple[int, float], ...] = ()
    prefill_s: float = 0.0

    @property
    def law(self) -> ServiceLaw:
        """Return the service law."""
        return ServiceLaw(**{field.name: getattr(self, field.name) for field in fields(ServiceLaw)})

    def __post_init__(self) -> None:
        """Refuse values that nothing can have measured: the file may have been edited."""
        _ = self.law
        for name, value in (("startup_s", self.startup_s), ("relative_error", self.relative_error)):
            require(value is None or (math.isfinite(value) and value >= 0), name, value, "must be finite and ≥ 0")
        slots = self.session_slots
        require(slots is None or slots >= 1, "session_slots", slots, "must be ≥ 1")


def learned_placements(spec: PipelineSpec, learned: Learned) -> dict[PlacementKey, LearnedPlacement]:
    """Return what is known of each placement of `spec`: its declared service law, corrected, or the one measured.

    A declared law is corrected by measured / declared service time. A placement whose service time was neither declared
    nor measured is left out: its spec has placeholders.
    """
    known: dict[PlacementKey, LearnedPlacement] = {}
    for key, placement in spec.placements().items():
        if key[0] in spec.borrowed:  # learned by the pipeline that the replicas belong to
            continue
        declared, prior, error = placement.declared, placement.prior, None
        cv = prior.service.cv if declared.cv else learned.cvs.get(key)
        if declared.service:
            law = prior.service.scaled(learned.service_factors.get(key, 1.0))
        elif (times := learned.batch_times.get(key)) is not None:
            fitted = fitted_law(times, prior.batch_sizes[-1], prior.service.cv)
            law = with_prefill(fitted.law, learned.prefills_s.get(key, 0.0))
            error = fitted.relative_error
        else:
            continue
        if cv is None:
            continue
        known[key] = LearnedPlacement(
            **{**asdict(law), "cv": cv},
            startup_s=placement.startup_s if declared.startup else learned.startups_s.get(key),
            session_slots=prior.session_slots if declared.memory else learned.session_slots.get(key),
            relative_error=error,
        )
    return known


def stages_document(spec: PipelineSpec, learned: Mapping[PlacementKey, LearnedPlacement]) -> list[Json]:
    """Return the stages and placements of `spec` as JSON, each placement with its `learned` numbers or null."""
    return [
        {
            "name": stage.name,
            "placements": [
                {
                    **placement_fields(placement.name),
                    "learned": encode(learned.get((stage.name, placement.name))),
                }
                for placement in stage.placements
            ],
        }
        for stage in spec.stages
    ]


def read_learned(document: Json) -> tuple[PipelineKey, dict[PlacementKey, LearnedPlacement]]:
    """Return the pipeline that `document` is about, and the learned numbers in it; other fields are ignored.

    `document` is what `sluice explain -o json` prints: `namespace`, `name`, and `stages` as `stages_document` returns
    them. A placement whose `learned` is null or missing is left out.

    Raises:
        InvalidRecord: `document` has another form, or a number is not possible.
    """
    fields = _fields(document, "document")
    key = PipelineKey(f"{decode(str, fields.get('namespace'), 'namespace')}/{decode(str, fields.get('name'), 'name')}")
    learned: dict[PlacementKey, LearnedPlacement] = {}
    for i, stage in enumerate(decode(list, fields.get("stages"), "stages")):
        at = f"stages[{i}]"
        own = _fields(stage, at)
        name = StageName(decode(str, own.get("name"), f"{at}.name"))
        for j, placement in enumerate(decode(list, own.get("placements"), f"{at}.placements")):
            here = f"{at}.placements[{j}]"
            one = _fields(placement, here)
            variant = one.get("variant")
            own_name = placement_name(
                decode(str, one.get("pool"), f"{here}.pool"),
                None if variant is None else decode(str, variant, f"{here}.variant"),
            )
            if one.get("learned") is not None:
                learned[name, own_name] = decode(LearnedPlacement, one["learned"], f"{here}.learned")
    return key, learned


def with_learned(spec: PipelineSpec, learned: Mapping[PlacementKey, LearnedPlacement]) -> PipelineSpec:
    """Return `spec` with the `learned` numbers in place of those that are not declared; declared ones stay.

    A learned service law counts as declared in the result.
    """
    stages = tuple(
        replace(
            stage,
            placements=tuple(
                _completed(placement, learned.get((stage.name, placement.name))) for placement in stage.placements
            ),
        )
        for stage in spec.stages
    )
    return replace(spec, stages=stages)


def _completed(placement: PlacementSpec, learned: LearnedPlacement | None) -> PlacementSpec:
    if learned is None:
        return placement
    declared, prior = placement.declared, placement.prior
    law = prior.service
    if not declared.service:
        law = learned.law
    elif not declared.cv:
        law = replace(law, cv=learned.cv)
    slots = prior.session_slots if declared.memory else learned.session_slots
    startup_s = placement.startup_s
    if not declared.startup and learned.startup_s is not None:
        startup_s = learned.startup_s
    return replace(
        placement,
        prior=replace(prior, service=law, session_slots=slots),
        startup_s=startup_s,
        declared=replace(declared, service=True, cv=True),
    )


def placeholders(
    spec: PipelineSpec, learned: Mapping[PlacementKey, LearnedPlacement]
) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every field that a plan needs and that is neither declared nor `learned`.

    A plan needs the service law. It does not use the start-up time, and without `memory` there is no limit on the
    sessions of a replica.
    """
    for i, stage in enumerate(spec.stages):
        for j, placement in enumerate(() if stage.shared_from is not None else stage.placements):
            key, at = (stage.name, placement.name), ("spec", "stages", i, "placements", j, "serviceTime")
            if key not in learned and not placement.declared.service:
                yield at
            elif key not in learned and not placement.declared.cv:
                yield (*at, "cv")


def _fields(document: Json, where: str) -> dict[str, Json]:
    if not isinstance(document, dict):
        raise InvalidRecord(f"{where}: must be a mapping of fields")
    return document
