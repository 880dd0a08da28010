"""Checks the arguments of `sluice plan` and makes the optimizer's problem from them."""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml

from controller.core.assess.optimizer_input import optimizer_pipeline, optimizer_pool
from controller.core.assess.shared import linked
from controller.core.codec import InvalidRecord
from controller.core.state.cloud import AwsPrice, PriceQuote
from controller.core.state.learned import LearnedPlacement, placeholders, read_learned
from controller.core.state.policy import Policy
from controller.core.state.spec import PipelineSpec, PoolSpec, with_basis
from controller.resources.base import Breach
from controller.resources.validation import Finding, Validation, finding_of
from optimizer.model import (
    Composition,
    GroupBudget,
    InvalidProblem,
    PipelineKey,
    PlacementKey,
    PoolName,
    Problem,
    StageName,
    placement_name,
)

DEFAULT_STEPS = 10
MAX_STEPS = 1000
_MISSING = "not declared; give it, or --learned FILE with what the operator has measured"
_NOT_LEARNED = "not declared, and not in the file of --learned; give it, or wait until the operator has measured it"
_NUMBER = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NAMED = "must be NAME=N with a number ≥ 0"
MAX_RATE_RPS = 1e12
"""A demand above this many items per second is refused as a typing error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRange:
    """The loads of the pipeline `key` to plan for, from the lowest to the highest, in the pipeline's own unit."""

    key: PipelineKey
    loads: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The pipelines to plan for and their loads.

    `demands` are in the pipelines' own units. `sweep` is the range of loads of one pipeline, if a range was given; then
    `demands` has its lowest load. `current` has the current replicas; it is empty without --current. `quotes` has what
    counts for the price of each pool that looks it up at AWS, which is not asked for a plan.
    """

    specs: Mapping[PipelineKey, PipelineSpec]
    demands: Mapping[PipelineKey, float]
    problem: Problem
    current: Mapping[PipelineKey, Mapping[PlacementKey, int]] = field(default_factory=dict)
    sweep: LoadRange | None = None
    quotes: Mapping[PoolName, PriceQuote] = field(default_factory=dict)

    def curve_of(self, name: str) -> PipelineKey:
        """Return the key of the pipeline whose curve --frontier asks for: `name`, or the only one if `name` is empty.

        Raises:
            click.UsageError: there is no such pipeline, `name` is empty with several, or one has a range of loads.
        """
        if any(spec.borrowed for spec in self.specs.values()):
            raise click.UsageError("--frontier: not possible where pipelines share a stage: plan one load at a time")
        if self.sweep is not None:
            raise click.UsageError(f"--frontier: {self.sweep.key} has a range of loads; --frontier needs one load")
        if not name and len(self.specs) > 1:
            raise click.UsageError(
                f"--frontier: the files have several pipelines; name one of {', '.join(sorted(self.specs))}"
            )
        key = PipelineKey(name) if name else next(iter(self.specs))
        if key not in self.specs:
            raise unknown_name("--frontier", name, self.specs)
        return key


def ask(
    specs: Mapping[PipelineKey, PipelineSpec],
    pools: Mapping[PoolName, PoolSpec],
    *,
    demands: Iterable[str],
    limits: Iterable[str] = (),
    composition: Composition | None = None,
    search_effort: int | None = None,
    current: Path | None = None,
    budgets: Iterable[GroupBudget] = (),
) -> PlanRequest:
    """Return the plan request for the options of a command line; shared stages in `specs` are filled in.

    `demands` and `limits` are the values of --demand and --instances. `composition` None: the operator's default.
    `search_effort` None: no limit. `current` is the file of --current. `budgets` are those of ComputeBudgets.

    Raises:
        click.UsageError: an option is wrong, or the files and options do not determine the problem.
    """
    specs = {key: with_basis(spec, pools) for key, spec in specs.items()}
    loads = loads_of(demands, specs)
    if not specs:
        raise click.UsageError("FILE...: there is no SpeechPipeline in these files")
    unknown = sorted(specs.keys() - loads.keys())
    if unknown:
        raise click.UsageError(
            f"--demand: {', '.join(unknown)}: missing; every pipeline in the files needs one (--demand {unknown[0]}=N)"
        )
    instances = instances_of(specs, pools, limits)
    ranged = [key for key, load in loads.items() if len(load) > 1]
    if len(ranged) > 1:
        raise click.UsageError(f"--demand: {' and '.join(ranged)}: only one pipeline may have a range")
    if ranged and any(spec.borrowed for spec in specs.values()):
        raise click.UsageError(
            f"--demand: {ranged[0]}: a range is not possible where pipelines share a stage: plan one load at a time"
        )
    running = {} if current is None else _running(current, specs)
    policy = Policy()
    lowest = {key: load[0] for key, load in loads.items()}
    used = _used_pools(specs)
    return PlanRequest(
        specs=specs,
        demands=lowest,
        problem=Problem(
            pipelines=tuple(
                linked(
                    {
                        key: optimizer_pipeline(spec, lowest[key], current=running.get(key, {}))
                        for key, spec in specs.items()
                    },
                    specs.values(),
                ).values()
            ),
            pools={name: optimizer_pool(spec, instances[name]) for name, spec in pools.items() if name in used},
            composition=composition or policy.composition,
            switching_cost_per_hour=policy.switching_cost_per_hour if running else 0.0,
            search_effort=search_effort,
            budgets=tuple(budgets),
        ),
        current=running,
        sweep=LoadRange(key=ranged[0], loads=loads[ranged[0]]) if ranged else None,
        quotes={name: spec.price for name, spec in pools.items() if name in used and spec.price is not None},
    )


def specs_of(
    checked: Validation, quote_of: Callable[[AwsPrice], PriceQuote | None] = lambda _: None
) -> tuple[dict[PipelineKey, PipelineSpec], dict[PoolName, PoolSpec]]:
    """Return the specs of the pipelines, by namespace and name, and of the pools, by name, in valid manifests.

    `quote_of` returns what AWS says about the price of a pool, None where it was not asked or did not answer.

    Raises:
        click.ClickException: a pool has no price: AWS gave none, and neither the manifest nor the bundled table has it.
    """
    from controller.resources.translate import aws_price, pipeline_spec, pool_spec

    pipelines = {spec.key: spec for spec in map(pipeline_spec, checked.pipelines)}
    pools: dict[PoolName, PoolSpec] = {}
    for pool in checked.pools:
        source = aws_price(pool)
        try:
            spec = pool_spec(pool, None if source is None else quote_of(source))
        except InvalidProblem as error:
            raise click.ClickException(f"ComputePool {pool.metadata.name}: {error}") from None
        pools[spec.name] = spec
    return pipelines, pools


def budgets_of(checked: Validation, specs: Iterable[PipelineSpec]) -> list[GroupBudget]:
    """Return the ComputeBudgets in valid manifests for the pipelines `specs`, with what they allow outside of periods.

    A namespace has the labels of its manifest, and the one that every namespace has: its name.
    """
    from controller.resources.budget import NAME_LABEL
    from controller.resources.translate import budget_spec

    named = [(spec, {NAME_LABEL: spec.namespace, **checked.namespace_labels.get(spec.namespace, {})}) for spec in specs]
    return [
        GroupBudget(
            name=budget.name,
            per_hour=budget.per_hour,
            pipelines=frozenset(spec.key for spec, labels in named if budget.selector.matches(labels)),
        )
        for budget in map(budget_spec, checked.budgets)
    ]


def instances_of(
    specs: Mapping[PipelineKey, PipelineSpec], pools: Mapping[PoolName, PoolSpec], limits: Iterable[str]
) -> dict[PoolName, int]:
    """Return the instances of every pool: those in `limits`, the values of --instances, or else the declared ones.

    A pool that no pipeline uses has 0 instances if it declares none.

    Raises:
        click.UsageError: an option is wrong, or a pool that a pipeline uses is missing or has no number of instances.
    """
    given = {
        PoolName(name): _whole_number("--instances", name, text)
        for name, text in assignments("--instances", limits, pools).items()
    }
    used = _used_pools(specs)
    missing = sorted(used - pools.keys())
    if missing:
        raise click.UsageError(f"FILE...: no ComputePool {', '.join(missing)} in these files; add the file that has it")
    open_ended = sorted(name for name in used if pools[name].instances is None and name not in given)
    if open_ended:
        raise click.UsageError(
            f"--instances: {', '.join(open_ended)}: a pool without spec.capacity.instances needs it "
            f"(--instances {open_ended[0]}=N)"
        )
    return {name: given.get(name, pool.instances or 0) for name, pool in pools.items()}


def read_learned_files(
    paths: Iterable[Path], specs: Mapping[PipelineKey, PipelineSpec]
) -> dict[PipelineKey, Mapping[PlacementKey, LearnedPlacement]]:
    """Return the learned numbers in the files of --learned, by pipeline and placement.

    Raises:
        click.UsageError: a file is not what `sluice explain -o json` prints, or not about a pipeline of `specs`.
    """
    found: dict[PipelineKey, Mapping[PlacementKey, LearnedPlacement]] = {}
    for path in paths:
        try:
            key, learned = read_learned(json.loads(path.read_text(encoding="utf-8")))
        except InvalidRecord as error:
            raise click.UsageError(f"--learned: '{path}': {error}") from None
        except (ValueError, OverflowError):  # not UTF-8, not JSON, or a number without end
            rule = "must be JSON, as `sluice explain -o json` prints it"
            raise click.UsageError(f"--learned: '{path}': {rule}") from None
        if key not in specs:
            raise click.UsageError(f"--learned: '{path}': is about {key}, which is not in the manifests")
        if key in found:
            raise click.UsageError(f"--learned: '{path}': a second file about {key}")
        found[key] = learned
    return found


def missing_numbers(
    checked: Validation,
    specs: Mapping[PipelineKey, PipelineSpec],
    learned: Mapping[PipelineKey, Mapping[PlacementKey, LearnedPlacement]],
) -> list[Finding]:
    """Return a finding for each number that a plan needs and that is neither declared in `checked` nor `learned`.

    `specs` are those of the pipelines in `checked`, in the same order.
    """
    return [
        finding_of(document, Breach(path=path, rule=_MISSING if spec.key not in learned else _NOT_LEARNED))
        for document, spec in zip(checked.pipeline_documents, specs.values(), strict=True)
        for path in placeholders(spec, learned.get(spec.key, {}))
    ]


def unknown_name(option: str, name: str, known: Iterable[str]) -> click.UsageError:
    """Return the usage error for `name`, which is not among the `known` names; it suggests the nearest of them."""
    names = sorted(known)
    same = [other for other in names if other.rpartition("/")[2] == name]
    close = same if len(same) == 1 else difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the files have {', '.join(names) or 'none'}"
    return click.UsageError(f"{option}: {name!r}: is not in these files; {hint}")


def _used_pools(specs: Mapping[PipelineKey, PipelineSpec]) -> set[PoolName]:
    return {placement.pool for spec in specs.values() for stage in spec.stages for placement in stage.placements}


def assignments(
    option: str,
    texts: Iterable[str],
    known: Iterable[str],
    *,
    only: str | None = None,
    rule: str = _NAMED,
) -> dict[str, str]:
    """Return the values of NAME=VALUE options by name; `only` is the name of a value without one.

    Raises:
        click.UsageError: a text has no name, an unknown name, or one that another text has too.
    """
    names, values = set(known), dict[str, str]()
    for text in texts:
        name, sign, value = text.partition("=")
        if only is not None and not sign:
            name, sign, value = only, "=", text
        if not sign:
            raise click.UsageError(f"{option}: {text!r}: {rule}")
        if name not in names:
            raise unknown_name(option, name, names)
        if name in values:
            raise click.UsageError(f"{option}: {name!r}: is given twice")
        values[name] = value
    return values


def loads_of(texts: Iterable[str], specs: Mapping[PipelineKey, PipelineSpec]) -> dict[PipelineKey, tuple[float, ...]]:
    """Return the loads of each pipeline in `texts`, the values of --demand, in the pipeline's own unit.

    The name may be left out where there is one pipeline.

    Raises:
        click.UsageError: a value is wrong, or names an unknown pipeline.
    """
    only = next(iter(specs)) if len(specs) == 1 else None
    rule = f"{_NAMED}; the files have {', '.join(sorted(specs)) or 'none'}"
    found = {
        PipelineKey(name): _load(f"{name}={value}", value)
        for name, value in assignments("--demand", texts, specs, only=only, rule=rule).items()
    }
    for key, loads in found.items():
        if loads[-1] * specs[key].items_per_unit_s > MAX_RATE_RPS:
            raise click.UsageError(
                f"--demand: '{key}={loads[-1]:g}': must be at most {MAX_RATE_RPS:g} items per second"
            )
    return found


def _load(text: str, value: str) -> tuple[float, ...]:
    """Return the load of N, or the evenly spaced loads of LOW:HIGH[:STEPS]."""
    low, *more = value.split(":")
    if not more:
        return (_amount("--demand", text, low, "N"),)
    if len(more) > 2:
        raise click.UsageError(f"--demand: {text!r}: must be NAME=N or NAME=LOW:HIGH[:STEPS]")
    first, last = _amount("--demand", text, low, "LOW"), _amount("--demand", text, more[0], "HIGH")
    if first >= last:
        raise click.UsageError(f"--demand: {text!r}: LOW must be below HIGH")
    steps = DEFAULT_STEPS
    if len(more) == 2:
        if not more[1].isascii() or not more[1].isdigit() or not 2 <= int(more[1]) <= MAX_STEPS:
            raise click.UsageError(f"--demand: {text!r}: STEPS must be a whole number from 2 to {MAX_STEPS:,}")
        steps = int(more[1])
    return tuple(first + (last - first) * k / (steps - 1) for k in range(steps))


def _amount(option: str, text: str, number: str, what: str) -> float:
    # float() would also read 1_000 and digits of other scripts, which are typing errors here.
    value = float(number) if _NUMBER.fullmatch(number) else math.nan
    if not math.isfinite(value):
        shape = f"must be NAME={what} with a number" if what == "N" else f"{what} must be a number"
        raise click.UsageError(f"{option}: {text!r}: {shape} ≥ 0, written as 1000 or 2.5")
    return value


def _whole_number(option: str, name: str, number: str) -> int:
    text = f"{name}={number}"
    value = _amount(option, text, number, "N")
    if value != int(value):
        raise click.UsageError(f"{option}: {text!r}: must be a whole number")
    return int(value)


def _running(path: Path, specs: Mapping[PipelineKey, PipelineSpec]) -> dict[PipelineKey, dict[PlacementKey, int]]:
    """Return the replicas of an earlier plan (`-o json` or `-o yaml`), for the placements that `specs` still have."""
    try:
        plan: Any = yaml.safe_load(path.read_text())  # JSON is YAML
        found = {
            PipelineKey(f"{pipeline['namespace']}/{pipeline['name']}"): {
                (StageName(stage["name"]), placement_name(placement["pool"], placement.get("variant"))): int(
                    placement["replicas"]
                )
                for stage in pipeline["stages"]
                for placement in stage["placements"]
            }
            for pipeline in plan["pipelines"]
        }
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, ValueError):
        raise click.UsageError(f"--current: '{path}': must be a plan as `sluice plan -o json` prints it") from None
    if not found.keys() & specs.keys():
        raise click.UsageError(f"--current: '{path}': must be a plan of a pipeline of these files; it has none of them")
    return {
        key: {place: count for place, count in found[key].items() if place in spec.placement_keys()}
        for key, spec in specs.items()
        if key in found
    }
