"""What a pipeline must remember across restarts, as a document in its status, and what a restart makes of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from controller.core.memory import DemandSample, PipelineMemory, RuleMemory
from controller.kube.gateway import Json
from optimizer.model import PoolName, StageName

_VERSION = 1
_DIGITS = 4  # of what is remembered: finer is noise, and would make every document look new


class UnreadableMemory(ValueError):
    """The document is not one that this version wrote."""


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class _Rule(_Document):
    floor: int | None = None
    fired: bool = False
    clear_since: float | None = Field(default=None, alias="clearSince")


class _Pool(_Document):
    service_factor: float | None = Field(default=None, alias="serviceFactor", gt=0)
    batch: int | None = None


class _Stage(_Document):
    pass_ratio: float | None = Field(default=None, alias="passRatio", gt=0, le=1)
    rules: dict[str, _Rule] = {}
    pools: dict[str, _Pool] = {}


class _Memory(_Document):
    version: int
    demand: float | None = Field(default=None, ge=0)
    samples: list[Annotated[tuple[float, float | None, float], Strict(False)]] = []
    stages: dict[str, _Stage] = {}
    excess_excused_until: float | None = Field(default=None, alias="excessExcusedUntil")


def memory_document(memory: PipelineMemory) -> Json:
    """Return `memory` as JSON: times in seconds since the epoch, a sample as [time, observed or null, forecast]."""
    stages: dict[str, Json] = {}
    for stage, ratio in memory.pass_ratios.items():
        stages.setdefault(stage, {})["passRatio"] = _rounded(ratio)
    for (stage, name), rule in memory.rules.items():
        entry = {"floor": rule.floor, "fired": rule.fired, "clearSince": rule.clear_since_s}
        rules = stages.setdefault(stage, {}).setdefault("rules", {})
        rules[name] = {key: value for key, value in entry.items() if value is not None}
    for (stage, pool), factor in memory.service_factors.items():
        stages.setdefault(stage, {}).setdefault("pools", {}).setdefault(pool, {})["serviceFactor"] = _rounded(factor)
    for (stage, pool), batch in memory.batches.items():
        stages.setdefault(stage, {}).setdefault("pools", {}).setdefault(pool, {})["batch"] = batch
    document: Json = {"version": _VERSION, "stages": stages}
    document["samples"] = [
        [
            round(sample.t_s, 1),
            None if sample.observed is None else _rounded(sample.observed),
            _rounded(sample.forecast),
        ]
        for sample in memory.samples
    ]
    if memory.demand is not None:
        document["demand"] = memory.demand
    if memory.excess_excused_until_s is not None:
        document["excessExcusedUntil"] = memory.excess_excused_until_s
    return document


def memory_from(document: Mapping[str, object] | None) -> PipelineMemory:
    """Return the memory that `memory_document` wrote; empty without a document.

    Raises:
        UnreadableMemory: it is something else.
    """
    if document is None:
        return PipelineMemory()
    try:
        read = _Memory.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UnreadableMemory(f"status.memory.{field}: {first['msg']}") from None
    if read.version != _VERSION:
        raise UnreadableMemory(f"status.memory.version: {read.version}: must be {_VERSION}")
    stages = [(StageName(name), stage) for name, stage in read.stages.items()]
    pools = [(stage, PoolName(name), pool) for stage, entry in stages for name, pool in entry.pools.items()]
    return PipelineMemory(
        demand=read.demand,
        samples=tuple(
            DemandSample(t_s=t, observed=observed, forecast=forecast) for t, observed, forecast in read.samples
        ),
        service_factors={
            (stage, name): pool.service_factor for stage, name, pool in pools if pool.service_factor is not None
        },
        pass_ratios={name: stage.pass_ratio for name, stage in stages if stage.pass_ratio is not None},
        rules={
            (stage, name): RuleMemory(floor=rule.floor, fired=rule.fired, clear_since_s=rule.clear_since)
            for stage, entry in stages
            for name, rule in entry.rules.items()
        },
        batches={(stage, name): pool.batch for stage, name, pool in pools if pool.batch is not None},
        excess_excused_until_s=read.excess_excused_until,
    )


def resumed(memory: PipelineMemory, now_s: float, window_s: float, interval_s: float) -> PipelineMemory:
    """Return `memory` as it continues after a restart at `now_s`; `window_s` is the longest stabilisation window.

    Samples are written when they move, not in every cycle, so the last one stands for the time since. Where it has
    left the window, the demand planned for had support until the end (else its fall would have been written): it
    enters the window again, so that a restart alone lowers nothing.
    """
    if not memory.samples or memory.demand is None:
        return memory
    last = memory.samples[-1]
    expired = last.t_s < now_s - window_s
    held = DemandSample(
        t_s=max(last.t_s, now_s - interval_s), observed=None, forecast=memory.demand if expired else last.forecast
    )
    return replace(memory, samples=(*memory.samples, held))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
