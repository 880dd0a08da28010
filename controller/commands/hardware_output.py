"""The output of `sluice hardware`: tables for people, a document for programs, and the values of the plot."""

from collections.abc import Iterator
from typing import Any

from controller.commands.plan_output import rounded
from controller.commands.terminal import Page
from controller.core.messages.phrases import (
    count_of,
    demand_words,
    duration,
    latency_words,
    money,
    number,
    share_words,
)
from controller.core.state.spec import DemandUnit
from controller.hardware.comparison import WORK_UTILIZATION, Comparison, Device, Mix, StageDevices
from controller.hardware.plot import CostPlot
from optimizer.model import placement_fields


def document(found: Comparison) -> dict[str, Any]:
    """Return the document that `-o json` prints; an absent value is null."""
    return {
        "namespace": found.spec.namespace,
        "name": found.spec.name,
        "unit": found.spec.unit.value,
        "demand": found.demand,
        "sla_s": found.spec.sla.latency_s,
        "percentile": found.spec.sla.percentile,
        "stages": [
            {
                "name": stage.name,
                "devices": [_device(device, found) for device in stage.devices],
                "break_even": [
                    {
                        "demand": rounded(found.load_of(each.demand)),
                        "cheaper": placement_fields(each.cheaper),
                        "other": placement_fields(each.other),
                    }
                    for each in stage.break_evens
                ],
            }
            for stage in found.stages
        ],
        "mix": [_mix(point) for point in found.mix],
    }


def _device(device: Device, found: Comparison) -> dict[str, Any]:
    streams, cost = found.spec.unit is DemandUnit.STREAMS, device.cost_per_hour
    per_unit = None if cost is None else rounded(found.per_unit(cost))
    spot = device.spot
    return {
        **placement_fields(device.name),
        "feasible": cost is not None,
        "limited_by": _limited_by(device),
        "replicas": device.replicas,
        "instances": device.instances,
        "device_seconds_per_unit": rounded(device.device_s),
        "replicas_by_work": found.by_work(device),
        "declared_instances_exceeded": device.beyond is not None,
        "utilization": rounded(device.planned.utilization),
        "p95_s": rounded(device.planned.latency_s),
        "pipeline_latency_s": rounded(device.pipeline.latency_s),
        "cost_per_hour": rounded(cost),
        "pipeline_cost_per_hour": None if cost is None else rounded(device.pipeline.cost_per_hour),
        "cost_per_stream_hour": per_unit if streams else None,
        "cost_per_1000_requests": None if streams else per_unit,
        "wer": device.wer,
        "service_time": {"from": device.law_from, "source": device.source, "confidence": device.confidence},
        "spot": None
        if spot is None
        else {
            "interrupted_share_per_month": spot.interruptions,
            "interruptions_per_month": rounded(spot.per_month),
            "away_share": rounded(spot.away),
            "spare_replicas": spot.spares,
            "cost_per_hour": rounded(spot.cost_per_hour),
        },
    }


def _limited_by(device: Device) -> str | None:
    if device.cost_per_hour is not None:
        return None
    return device.excluded or "Sla"


def _mix(point: Mix) -> dict[str, Any]:
    return {
        "demand": rounded(point.load),
        "feasible": point.plan.feasible,
        "cost_per_hour": rounded(point.plan.cost_per_hour) if point.plan.feasible else None,
        "pools": [
            {"name": name, "instances": point.instances[name], "cost_per_hour": rounded(cost)}
            for name, cost in sorted(point.cost_per_hour.items())
        ],
    }


def print_comparison(found: Comparison) -> None:
    """Print a table for each stage, its break-even loads, and the cheapest mix over the load."""
    page, spec = Page(), found.spec
    percentile = f">p{spec.sla.percentile:g}"
    per = "stream-hour" if spec.unit is DemandUnit.STREAMS else "1,000 requests"
    page.say(
        f"{spec.key}: devices at {demand_words(spec, found.demand)} within {duration(spec.sla.latency_s)}; budget, "
        "capacity of pools and replica bounds do not apply",
        style="bold",
    )
    for stage in found.stages:
        page.say()
        page.say(f"stage {stage.name}", style="bold")
        page.table(
            (
                "device",
                ">replicas",
                ">by work",
                ">instances",
                percentile,
                ">cost",
                f">per {per}",
                "service time",
            ),
            (_row(device, found) for device in stage.devices),
        )
        for line in _lines(stage, found):
            page.say(line, indent=1)
    page.say()
    page.say(f"by work: load × seconds of a device / {WORK_UTILIZATION:g}, with full batches and without queues")
    page.say()
    page.say("cheapest mix of pools", style="bold")
    unit = "streams" if spec.unit is DemandUnit.STREAMS else "requests/s"
    page.table((f">{unit}", ">cost", "instances"), (_mix_row(point) for point in found.mix))
    for note in found.notes:
        page.say(note)


def _row(device: Device, found: Comparison) -> tuple[str, ...]:
    law = device.law_from if device.confidence is None else f"{device.law_from}, confidence {device.confidence}"
    if device.cost_per_hour is None:
        why = f"not used: its word error rate is above {device.excluded}" if device.excluded else "cannot keep the SLA"
        return (device.name, "-", str(found.by_work(device)), "-", "-", "-", "-", f"{why}; {law}")
    beyond = "" if device.beyond is None else f" of {device.beyond}"
    return (
        device.name,
        str(device.replicas),
        str(found.by_work(device)),
        f"{device.instances}{beyond}",
        latency_words(device.planned.latency_s, device.planned.latency_error),
        money(device.cost_per_hour),
        f"${found.per_unit(device.cost_per_hour):.4g}",
        law,
    )


def _lines(stage: StageDevices, found: Comparison) -> Iterator[str]:
    for each in stage.break_evens:
        load = demand_words(found.spec, float(f"{found.load_of(each.demand):.3g}"))
        yield f"from {load} on, {each.cheaper} costs less than {each.other}"
    for device in stage.devices:
        if device.spot is not None:
            spot = device.spot
            more = "no spare replica" if not spot.spares else f"{count_of(spot.spares, 'spare replica')}"
            yield (
                f"{device.name} are spot instances: {share_words(spot.interruptions)} of them interrupted in a month, "
                f"{number(spot.per_month)} times in all, each with the sessions there; a replica is away "
                f"{share_words(spot.away)} of the time; {more}, {money(spot.cost_per_hour)}"
            )
        if device.law_from == "prior":
            yield f"{device.name}: {device.source}"


def _mix_row(point: Mix) -> tuple[str, ...]:
    load = number(point.load)
    if not point.plan.feasible:
        return (load, "-", "cannot be served within the SLA")
    instances = ", ".join(f"{count} {pool}" for pool, count in sorted(point.instances.items()))
    return (load, money(point.plan.cost_per_hour), instances or "none")


def plot_of(found: Comparison) -> CostPlot:
    """Return the plot of the cheapest mix over the load."""
    pools = sorted({pool for point in found.mix for pool in point.cost_per_hour})
    served = [point for point in found.mix if point.plan.feasible]
    return CostPlot(
        title=f"{found.spec.key}: the cheapest hardware within {duration(found.spec.sla.latency_s)}",
        unit="streams" if found.spec.unit is DemandUnit.STREAMS else "requests per second",
        loads=[0.0, *(point.load for point in served)],
        pools=pools,
        costs=[[0.0, *(point.cost_per_hour.get(pool, 0.0) for point in served)] for pool in pools],
    )
