"""`sluice pause`, `resume` and `pin`: set and remove the annotations that override the plan for a time."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from controller.commands.connections import duration_option, errors_about, kubeconfig_option, pipeline_arguments
from controller.commands.help_page import examples
from controller.core.state.spec import PAUSE_ANNOTATION, PIN_ANNOTATION, Mode
from optimizer.model import PlacementName, named_placement

if TYPE_CHECKING:
    from controller.core.state.spec import PoolSpec
    from controller.kube.gateway import Gateway
    from controller.resources.pipeline import SpeechPipeline

Json = dict[str, Any]
Change = tuple[Mapping[str, str | None], list[str]]
"""The annotations to set (None: to remove), and what this does as lines for people."""

_ATTEMPTS = 5
"""How often a write is tried: the operator writes the status of the same object in most cycles."""
_ANSWERS = 3
"""So many answers of the API server give its time."""


_for = duration_option("--for", "for_s", "How long, such as 1h. Default: until `sluice resume`.", longest="720h")


@click.command(epilog=examples("sluice pause speech/captions --for 1h"))
@pipeline_arguments
@_for
@kubeconfig_option
def pause(key: str, for_s: float | None, kubeconfig: Path | None) -> None:
    """Pause PIPELINE: its replicas stay as they are, and Sluice only reports."""

    def change(resource: Json, until: str | None, _gateway: "Gateway") -> Change:
        lines = [f"{key}: paused {_ends(until)}; replicas stay as they are, reports go on"]
        if _mode(resource) is Mode.PAUSED:
            lines.append("spec.mode is Paused too: nothing changes before it is Auto")
        return {PAUSE_ANNOTATION: until or "true"}, [*lines, f"end it with: sluice resume {key}"]

    _annotate(key, kubeconfig, for_s, change)


@click.command(epilog=examples("sluice resume speech/captions", "sluice resume speech/captions --stage asr --pool gpu"))
@pipeline_arguments
@click.option("--stage", metavar="STAGE", help="With --pool: remove only the pin of this stage and pool.")
@click.option("--pool", metavar="POOL", help="The pool of that pin.")
@kubeconfig_option
def resume(key: str, stage: str | None, pool: str | None, kubeconfig: Path | None) -> None:
    """End the pause and all pins of PIPELINE: it follows the plan again.

    Exit status: 0 done; 1 spec.mode is Paused, which it does not change, or the cluster cannot be read or written; 2
    wrong usage.
    """
    if (stage is None) != (pool is None):
        raise click.UsageError("--stage and --pool: use both, or neither")

    def change(resource: Json, _until: str | None, _gateway: "Gateway") -> Change:
        return _removed(key, resource) if stage is None or pool is None else _removed_pin(key, resource, stage, pool)

    resource = _annotate(key, kubeconfig, None, change)
    if stage is None and _mode(resource) is Mode.PAUSED:
        namespace, _, name = key.partition("/")
        raise click.ClickException(
            f"{key} stays paused: spec.mode is Paused. Set it to Auto in its manifest, or run: kubectl -n {namespace} "
            f"""patch speechpipeline {name} --type merge --patch '{{"spec": {{"mode": "Auto"}}}}'"""
        )


@click.command(epilog=examples("sluice pin speech/captions --stage asr --pool gpu --replicas 3 --for 1h"))
@pipeline_arguments
@click.option("--stage", metavar="STAGE", required=True, help="Stage of the pipeline.")
@click.option(
    "--pool", metavar="POOL", required=True, help="Pool of one of its placements; POOL:VARIANT for a variant."
)
@click.option(
    "--replicas", metavar="N", required=True, type=click.IntRange(min=0), help="Replicas that it keeps there."
)
@_for
@kubeconfig_option
def pin(key: str, stage: str, pool: str, replicas: int, for_s: float | None, kubeconfig: Path | None) -> None:
    """Keep exactly so many replicas of a stage of PIPELINE on a pool, whatever the plan; budget and pool still hold."""

    def change(resource: Json, until: str | None, gateway: "Gateway") -> Change:
        from controller.resources.annotations import InvalidAnnotation, pin_of, with_pin

        text = str(replicas) if until is None else f"{replicas}@{until}"
        pipeline = _parsed(key, resource)
        try:
            pin_of(pipeline, f"{stage}/{pool}={text}")
        except InvalidAnnotation as error:
            raise click.ClickException(f"{key}: {error}") from None
        pins = with_pin(_annotations(resource).get(PIN_ANNOTATION), stage, pool, text)
        lines = [
            f"{key}: stage {stage} on {pool} is pinned to {_replicas(replicas)} {_ends(until)}",
            *_cost(gateway, pipeline, stage, named_placement(pool), replicas),
            *_hindrances(resource, pipeline, stage, pins, gateway.server_clock.now_s()),
            f"end it with: sluice resume {key} --stage {stage} --pool {pool}",
        ]
        return {PIN_ANNOTATION: pins}, lines

    _annotate(key, kubeconfig, for_s, change)


def _annotate(
    key: str,
    kubeconfig: Path | None,
    for_s: float | None,
    change: Callable[[Json, str | None, "Gateway"], Change],
) -> Json:
    """Write what `change` returns to the pipeline `key`, print its lines, and return the pipeline as it was read.

    `change` gets the pipeline, the time `for_s` seconds from now by the API server's clock (None: no end) and the
    connection. It is called again with the newer pipeline where that has changed meanwhile.
    """
    from controller.commands.terminal import show
    from controller.core.messages.phrases import timestamp
    from controller.kube.gateway import PIPELINES, Conflict, Gateway

    namespace, _, name = key.partition("/")
    with errors_about(key), Gateway(kubeconfig) as gateway:
        for _ in range(_ATTEMPTS):
            for _ in range(1 if for_s is None else _ANSWERS):
                resource = gateway.get(PIPELINES, namespace, name)
            until = None if for_s is None else timestamp(gateway.server_clock.now_s() + for_s)
            annotations, lines = change(resource, until, gateway)
            metadata = resource["metadata"]
            version = {part: metadata[part] for part in ("uid", "resourceVersion")}
            try:
                if annotations:
                    patch = {"metadata": {**version, "annotations": dict(annotations)}}
                    gateway.patch(PIPELINES, namespace, name, patch)
            except Conflict:
                continue
            show(lines)
            return resource
    raise click.ClickException(f"{key}: changed by others in all {_ATTEMPTS} attempts; nothing is written, try again")


def _removed(key: str, resource: Json) -> Change:
    found = [name for name in (PAUSE_ANNOTATION, PIN_ANNOTATION) if name in _annotations(resource)]
    if not found:
        return {}, [f"{key}: has no pause and no pin; nothing is written"]
    what = " and ".join({PAUSE_ANNOTATION: "pause", PIN_ANNOTATION: "pins"}[name] for name in found)
    return dict.fromkeys(found), [f"{key}: {what} removed; it follows the plan from the next cycle on"]


def _removed_pin(key: str, resource: Json, stage: str, pool: str) -> Change:
    from controller.resources.annotations import entries, with_pin

    before = _annotations(resource).get(PIN_ANNOTATION)
    after = with_pin(before, stage, pool, None)
    if len(entries(after)) == len(entries(before)):
        pinned = ", ".join(entries(before)) or "none"
        raise click.ClickException(f"{key}: stage {stage} on pool {pool} is not pinned; pins: {pinned}")
    return {PIN_ANNOTATION: after}, [f"{key}: stage {stage} on {pool} follows the plan from the next cycle on"]


def _cost(
    gateway: "Gateway", pipeline: "SpeechPipeline", stage: str, own: PlacementName, replicas: int
) -> Iterator[str]:
    """Yield what the pinned replicas cost, as far as the price of the pool can be read."""
    from controller.core.messages.phrases import count_of, money
    from controller.core.state.spec import with_basis
    from controller.kube.gateway import POOLS, KubeError, NotFound
    from controller.resources.parsing import InvalidResource, parse
    from controller.resources.pool import ComputePool
    from controller.resources.translate import pipeline_spec, pool_spec
    from optimizer.model import Basis, pool_of

    def read(name: str) -> "PoolSpec":
        document = gateway.get(POOLS, None, name)
        return pool_spec(parse(ComputePool, {part: value for part, value in document.items() if part != "status"}))

    spec = pipeline_spec(pipeline)
    pool = pool_of(own)
    try:
        pools = {pool: read(pool)}
    except NotFound:
        yield f"ComputePool {pool} does not exist: no replica is added there"
        return
    except (KubeError, InvalidResource) as error:
        yield f"its cost is not known: {error}"
        return
    for other in {one.pool for one in spec.placements().values()}:
        # Any elastic pool of the pipeline makes whole instances the basis.
        with suppress(KubeError, InvalidResource):
            pools |= {} if other in pools or spec.declared_basis is not None else {other: read(other)}
    placement = next(one for key, one in spec.placements().items() if key == (stage, own))
    per_instance, price = placement.prior.per_instance, pools[pool].price_per_hour
    whole = with_basis(spec, pools).basis is Basis.INSTANCES
    instances = math.ceil(replicas / per_instance)
    cost = price * (instances if whole else replicas / per_instance)
    above = cost > spec.budget_per_hour
    limit = f", above budget.perHour of {money(spec.budget_per_hour)}: fewer will run" if above else ""
    if whole and per_instance > 1:
        # What shares these instances is decided by the plan, so that the cost is known as a bound only.
        limit += f"; at most, because {count_of(instances, 'whole instance')} may have replicas of other stages too"
    yield f"{_replicas(replicas)} cost {money(cost)}{limit}"


def _hindrances(
    resource: Json, pipeline: "SpeechPipeline", stage: str, pins: str | None, now_s: float
) -> Iterator[str]:
    """Yield what keeps a pin from being applied, and what it keeps from being served."""
    from controller.resources.annotations import entries, overrides

    mode, pause = _mode(resource), overrides(pipeline).pause
    paused = pause is not None and (pause.until_s is None or pause.until_s > now_s)
    if mode is Mode.RECOMMEND:
        yield "spec.mode is Recommend: the pin is planned, not applied"
    elif mode is Mode.PAUSED or paused:
        yield "the pipeline is paused: the pin is applied when it is resumed"
    (own,) = (one for one in pipeline.spec.stages if one.name == stage)
    empty = {entry.partition("=")[0] for entry in entries(pins) if re.match(r"[^=]+=0+(@|$)", entry)}
    if all(f"{stage}/{workload.name}" in empty for _, workload in own.workloads()):
        yield f"warning: all placements of stage {stage} are pinned to 0: nothing is served"


def _parsed(key: str, resource: Json) -> "SpeechPipeline":
    from controller.resources.parsing import InvalidResource, parse
    from controller.resources.pipeline import SpeechPipeline

    try:
        return parse(SpeechPipeline, {part: value for part, value in resource.items() if part != "status"})
    except InvalidResource as error:
        raise click.ClickException(f"{key} is not valid, so that no pin is possible: {error}") from None


def _annotations(resource: Json) -> Mapping[str, str]:
    return resource["metadata"].get("annotations") or {}


def _mode(resource: Json) -> Mode:
    return Mode(resource["spec"].get("mode", Mode.AUTO.value))


def _ends(until: str | None) -> str:
    return "until it is resumed" if until is None else f"until {until}"


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"
