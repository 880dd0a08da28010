"""Computes the profile of a pipeline from its metrics and from what earlier cycles learned. Pure."""

import math
from collections.abc import Iterator
from dataclasses import replace

from optimizer.model import PlacementKey
from profiler.correction import with_corrections
from profiler.estimate import estimate_pipeline, measured_batch
from profiler.neighbours import NOTHING, Interference, with_exposure
from profiler.receive import learned_receive_limits
from profiler.samples import Absence, Quantity
from profiler.slots import learned_slots
from profiler.stages import Learned, PipelineInput, PipelineProfile, Shares

PREFIX_TIME_CONSTANT_S = 300.0
"""Time constant of the share of prompts in a prefix cache: it is low after a start, and rises as the cache fills."""
MOST_ENGINES = 64
"""No replica has more engines; bounds what an absurd reading can teach."""
_ROUNDING = 1e-6


def profile_pipeline(
    pipeline: PipelineInput, learned: Learned, *, now_s: float, interval_s: float
) -> tuple[PipelineProfile, Learned]:
    """Return the profile of `pipeline`, and what has been learned of it by now.

    `learned` is the second value that the last call returned, `interval_s` seconds ago.
    """
    learned = replace(learned, receive_limits=learned_receive_limits(pipeline, learned, now_s=now_s))
    estimated = estimate_pipeline(pipeline, learned, interval_s=interval_s)
    profile = with_corrections(estimated, pipeline, learned, now_s=now_s, interval_s=interval_s)
    startups_s = {
        (stage.name, placement.name): placement.startup_s
        for stage in pipeline.stages
        for placement in stage.placements
        if placement.startup_s is not None
    }
    session_slots, sessions_held = learned_slots(pipeline, learned)
    return profile, replace(
        _learned(profile),
        startups_s={**learned.startups_s, **startups_s},
        session_slots=session_slots,
        sessions_held=sessions_held,
        receive_limits=learned.receive_limits,
        engines={**learned.engines, **dict(_engines(pipeline))},
        interference=dict(_interference(pipeline, profile, learned, interval_s)),
        shares=Shares(
            cascade={own.name: own.cascade_share for own in profile.stages if own.cascade_share is not None},
            prefix={**learned.shares.prefix, **dict(_prefix_hits(pipeline, learned, interval_s))},
        ),
    )


def _engines(pipeline: PipelineInput) -> Iterator[tuple[PlacementKey, int]]:
    """Yield the engines in a replica of each placement whose servers tell them, rounded down while pods differ."""
    for stage in pipeline.stages:
        for placement in stage.placements:
            engines = placement.samples.of(Quantity.ENGINES)
            if not isinstance(engines, Absence) and engines >= 1:
                yield (stage.name, placement.name), int(min(MOST_ENGINES, engines) + _ROUNDING)


def _prefix_hits(pipeline: PipelineInput, learned: Learned, interval_s: float) -> Iterator[tuple[PlacementKey, float]]:
    """Yield the share of the tokens of prompts that the prefix cache of each placement has, smoothed."""
    weight = 1 - math.exp(-interval_s / PREFIX_TIME_CONSTANT_S)
    for stage in pipeline.stages:
        for placement in stage.placements:
            key, rate = (stage.name, placement.name), placement.samples.of(Quantity.PREFIX_HIT_RATE)
            if isinstance(rate, Absence) or not 0 <= rate <= 1:
                continue
            before = learned.shares.prefix.get(key)
            yield key, rate if before is None else before + weight * (rate - before)


def _interference(
    pipeline: PipelineInput, profile: PipelineProfile, learned: Learned, interval_s: float
) -> Iterator[tuple[PlacementKey, Interference]]:
    """Yield what is known of the neighbours of each placement, with the measurement of this cycle where there is one.

    There is none while replicas start or stop: the exposures are then not those of the window.
    """
    for stage, own in zip(pipeline.stages, profile.stages, strict=True):
        for placement, measured in zip(stage.placements, own.placements, strict=True):
            key = (stage.name, placement.name)
            known = learned.interference.get(key, NOTHING)
            if not (placement.neighbours or known.neighbours):
                continue
            exposures = {each.name: each.exposure for each in placement.neighbours}
            found = {name: exposure for name, exposure in exposures.items() if exposure is not None}
            served = measured_batch(placement, measured.service, stage.window_s)
            if served and len(found) == len(exposures) and stage.settled:
                weight = min(1.0, interval_s / stage.window_s)
                known = with_exposure(known, *served, found, weight=weight, age_s=interval_s)
            if known.neighbours:
                yield key, known


def _learned(profile: PipelineProfile) -> Learned:
    placements = [
        ((stage.name, placement.name), placement) for stage in profile.stages for placement in stage.placements
    ]
    return Learned(
        pass_ratios={stage.name: stage.pass_ratio for stage in profile.stages if stage.pass_ratio_known},
        service_factors={
            key: placement.service_factor
            for key, placement in placements
            if placement.measured and placement.batch_times is None
        },
        latency_corrections={
            stage.name: stage.latency_correction for stage in profile.stages if stage.latency_correction is not None
        },
        throughput_corrections={
            key: placement.throughput_correction
            for key, placement in placements
            if placement.throughput_correction is not None
        },
        overhead_s=profile.overhead_s,
        batch_times={key: placement.batch_times for key, placement in placements if placement.batch_times is not None},
        prefills_s={
            key: placement.service.prefill_s
            for key, placement in placements
            if placement.batch_times is not None and placement.service.prefill_s > 0
        },
        cvs={
            key: placement.service.cv
            for key, placement in placements
            if placement.batch_times is not None or placement.learned_cv is not None
        },
    )
