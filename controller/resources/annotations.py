"""The annotations of a SpeechPipeline that pause it or pin replicas: their texts, and the values that these mean.

They are annotations, not fields of the spec, so that a tool that owns the spec does not revert them.
"""

import re
from collections.abc import Iterator

from controller.core.state.spec import (
    NO_OVERRIDES,
    PAUSE_ANNOTATION,
    PIN_ANNOTATION,
    Overrides,
    Pause,
    Pin,
)
from controller.resources.fields import MOMENT_PATTERN, PATTERN_RULES, is_day, moment_s
from controller.resources.pipeline import SpeechPipeline
from controller.resources.stage import Stage
from optimizer.model import PlacementKey, StageName, named_placement

_ENTRY = r"(?P<stage>[^/=@\s]+)/(?P<placement>[^/=@\s]+)=(?P<replicas>[0-9]{1,9})(@(?P<until>\S+))?"
_ENTRY_RULE = "must be STAGE/POOL=REPLICAS or STAGE/POOL=REPLICAS@TIME"
_PAUSE_RULE = 'must be "true", or the RFC 3339 time at which the pause ends, such as 2026-12-24T18:00:00Z'


_SHOWN = 80
"""The most characters of a value in a message: an annotation may have 256 KiB."""
_REPORTED = 5
"""The most problems that are reported of one annotation."""


class InvalidAnnotation(ValueError):
    """A value of an annotation breaks a rule; the text names the value and the rule."""


def overrides(resource: SpeechPipeline) -> Overrides:
    """Return what the annotations of `resource` set. Parts that are not valid are in its `problems` only."""
    annotations = resource.metadata.annotations
    pause_text, pin_text = annotations.get(PAUSE_ANNOTATION), annotations.get(PIN_ANNOTATION)
    if pause_text is None and pin_text is None:
        return NO_OVERRIDES
    pause: Pause | None = None
    pins: dict[PlacementKey, Pin] = {}
    problems: list[str] = []
    try:
        pause = None if pause_text is None else pause_of(pause_text)
    except InvalidAnnotation as error:
        problems.append(f"{PAUSE_ANNOTATION}: {error}")
    for entry in entries(pin_text):
        try:
            key, pin = pin_of(resource, entry)
        except InvalidAnnotation as error:
            problems.append(f"{PIN_ANNOTATION}: {error}")
            continue
        if key in pins:
            problems.append(
                f"{PIN_ANNOTATION}: {_shown(entry)}: {key[0]}/{key[1]} is pinned twice; the first entry counts"
            )
            continue
        pins[key] = pin
    return Overrides(pause=pause, pins=pins, problems=tuple(problems[:_REPORTED]))


def pause_of(text: str) -> Pause | None:
    """Return the pause that the annotation `text` means; None for `false`.

    Raises:
        InvalidAnnotation: it is neither `true`, `false` nor a time.
    """
    match text.strip():
        case "true":
            return Pause()
        case "false":
            return None
        case moment if _is_moment(moment):
            return Pause(until_s=moment_s(moment))
    raise InvalidAnnotation(f"{_shown(text)}: {_PAUSE_RULE}")


def entries(text: str | None) -> tuple[str, ...]:
    """Return the entries of the annotation for pins, without the spaces around them."""
    return tuple(entry for part in (text or "").split(",") if (entry := part.strip()))


def pin_of(resource: SpeechPipeline, entry: str) -> tuple[PlacementKey, Pin]:
    """Return the placement of `resource` and the pin that `entry` of the annotation means.

    Raises:
        InvalidAnnotation: the entry cannot be read, or `resource` cannot have these replicas there.
    """
    found = re.fullmatch(_ENTRY, entry)
    if found is None:
        raise InvalidAnnotation(f"{_shown(entry)}: {_ENTRY_RULE}")
    for problem in _problems(resource, found["stage"], found["placement"], int(found["replicas"])):
        raise InvalidAnnotation(f"{_shown(entry)}: {problem}")
    until = found["until"]
    if until is not None and not _is_moment(until):
        raise InvalidAnnotation(f"{_shown(entry)}: {until}: {PATTERN_RULES[MOMENT_PATTERN]}")
    pin = Pin(replicas=int(found["replicas"]), until_s=None if until is None else moment_s(until))
    return (StageName(found["stage"]), named_placement(found["placement"])), pin


def with_pin(text: str | None, stage: str, pool: str, pin: str | None) -> str | None:
    """Return the annotation `text` with `pin` (REPLICAS or REPLICAS@TIME) as the only entry for a placement.

    Without a `pin` it has no entry for it. All other entries stay as they are. None: no entry is left.
    """
    kept = [entry for entry in entries(text) if entry.partition("=")[0].strip() != f"{stage}/{pool}"]
    return ", ".join([*kept, *([] if pin is None else [f"{stage}/{pool}={pin}"])]) or None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _problems(resource: SpeechPipeline, name: str, pool: str, replicas: int) -> Iterator[str]:
    stages: dict[str, Stage] = {stage.name: stage for stage in resource.spec.stages}
    stage = stages.get(name)
    if stage is None:
        yield f"stage {name}: must be one of {', '.join(stages)}"
        return
    if stage.shared_from is not None:
        yield f"stage {name} is shared from pipeline {stage.shared_from.pipeline}; pin it there"
        return
    placements = {own.name: own.placement for _, own in stage.workloads()}
    placement = placements.get(named_placement(pool))
    if placement is None:
        yield f"pool {pool}: must be one of those of stage {name}: {', '.join(placements)}"
        return
    if replicas > placement.replicas.max:
        yield f"{replicas} replicas: must be at most replicas.max of stage {name} on {pool}, {placement.replicas.max}"
    sla = resource.spec.sla
    most = None if stage.cascade is not None or sla is None else sla.max_wer  # of the mixture, whose share is measured
    if replicas and most is not None and placement.wer is not None and float(placement.wer) > float(most):
        yield f"its word error rate {placement.wer} is above sla.maxWer, {most}; no replica is allowed there"


def _is_moment(text: str) -> bool:
    return re.fullmatch(MOMENT_PATTERN, text) is not None and is_day(text)
