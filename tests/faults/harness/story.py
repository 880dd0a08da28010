"""The fault matrix: a row per fault, a column per promise, and in each cell the result on real servers.

Most rows have the same story. Three pipelines serve their base load, and a fourth is invalid. At the same moment a
fault begins, one pool stops placing replicas and loses one, and the load changes. Under metrics faults it falls, so
that missing data and no load look alike; under others it rises far above the budget. The fault ends, and finally the
operator restarts with nothing changed.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import Any, Literal

from world import Operator, World, instances, spend, until

Fault = Callable[[World, Operator], contextlib.AbstractContextManager[None]]

_SOON_S = 45.0
LOOK_S = 1.0
"""The time of one read on a busy machine, of a state that may have been there for long."""
_EPSILON = 1e-6
_ATTEMPTS = 3
_RESTED = 3
"""Two cycles, and the one that may have begun before."""
_METRICS_PROBLEM = '"message": "metrics: '


class Column(Enum):
    """The promises."""

    NEVER_DOWN = "never down on missing data"
    CAPS = "never above a cap"
    ONE_WRITER = "never two writers"
    PENDING = "pending leads to a new plan"
    RESTART = "a restart writes nothing"
    OTHERS = "faults are isolated per resource"
    RECOVERY = "recovery within 2 cycles"
    REASON = "the reason is in the status"
    SERVED = "the SLA is met in the end"


Verdict = Literal["held", "violated", "n/a"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The verdict on a promise under a fault, with figures or the reason."""

    verdict: Verdict
    why: str


@dataclass(slots=True)
class Judge:
    """Fills the cells of a row. A promise that is checked several times is violated if one check fails."""

    cells: dict[Column, Cell] = field(default_factory=dict)

    def hold(self, column: Column, ok: object, why: str) -> None:
        """Record whether a promise was held, with figures."""
        before = self.cells.get(column)
        if before is not None and before.verdict == "violated":
            return
        reason = why if before is None or not ok or before.verdict != "held" else f"{before.why}; {why}"
        self.cells[column] = Cell(verdict="held" if ok else "violated", why=reason)

    def shorten(self, column: Column, why: str) -> None:
        """Replace the reason of a promise that was held."""
        if self.cells[column].verdict == "held":
            self.cells[column] = Cell(verdict="held", why=why)

    def explain(self, column: Column, why: str) -> None:
        """Add to the reason of a promise."""
        cell = self.cells[column]
        self.cells[column] = replace(cell, why=f"{cell.why}; {why}")

    def not_applicable(self, column: Column, why: str) -> None:
        """Record why a promise is not affected, unless it has a verdict."""
        self.cells.setdefault(column, Cell(verdict="n/a", why=why))

    def in_time(self, column: Column, what: str, holds: Callable[[], object], within_s: float) -> float | None:
        """Check that `holds` becomes true within a time; return the time it took, None if it did not."""
        began_s = time.monotonic()
        try:
            until(holds, max(_SOON_S, 1.5 * within_s), what)
        except AssertionError as error:
            self.hold(column, False, f"{what}: {error}")
            return None
        took_s = time.monotonic() - began_s
        self.hold(column, took_s <= within_s, f"{what}: {took_s:.1f} s of {within_s:.1f} s")
        return took_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A fault. `run` gets a settled world and may leave it in any state; cells without a verdict are not applicable.

    `shares` names the first of the rows that share a run with this one, which are best run in one world.
    """

    name: str
    run: Callable[[World, Judge], None]
    shares: str | None = None


def together(rows: Iterable[Row]) -> tuple[tuple[Row, ...], ...]:
    """Return the rows in groups of those that share a run, each group at the place of its first row."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.shares or row.name, []).append(row)
    return tuple(map(tuple, groups.values()))


# -- the story


def settle(world: World, *operators: Operator) -> None:
    """Wait until the base load is served, every pipeline has a status, and cycles change nothing."""
    base = world.base_replicas()
    until(
        lambda: all(world.status(name).get("stages") for name in world.BASE) and world.condition("bad", "Ready"),
        what="statuses of all pipelines",
    )
    cycles = {operator.name: operator.cycles() for operator in operators}
    until(lambda: any(o.cycles() >= cycles[o.name] + 3 for o in operators), what="three cycles")
    until(lambda: world.serving(base), what=f"the base load to be served by {base}: {_found(world)}")
    until(lambda: _metrics_of_all(world), what="metrics of all pipelines")


def _metrics_of_all(world: World) -> bool:
    there = [name for name in world.names() if name in world.BASE]
    return all(world.condition(name, "MetricsAvailable").get("status") == "True" for name in there)


def _found(world: World) -> dict[str, int]:
    return {name: world.replicas(name) for name in world.base_replicas()}


def story(
    name: str,
    fault: Fault,
    *,
    lasts_s: float,
    load: Literal["falls", "rises", "stays"],
    reason: Callable[[World], object] | None = None,
    noticed_after_s: float = 0.0,
    acts_meanwhile: bool = False,
) -> Row:
    """Return the row of a fault in the usual story.

    `reason` looks for the fault in the status while it lasts; without one, the status must be up to date within a cycle
    of the fault's end. `noticed_after_s` is the time for which earlier readings stay valid. With `acts_meanwhile`, the
    operator can use the API server while the fault lasts.
    """

    def run(world: World, judge: Judge) -> None:
        world.begin()
        operator = world.operator()
        settle(world, operator)
        began_s = time.monotonic()
        with fault(world, operator):
            world.cordon("scarce")
            world.lose_a_pod("spare-scarce")
            if load != "stays":
                world.offered["main"] = world.MUCH if load == "rises" else world.LITTLE
            if reason is not None:
                judge.in_time(Column.REASON, "named", lambda: reason(world), world.pace.cycles(1) + noticed_after_s)
            if acts_meanwhile:
                replanned(world, judge, began_s)
            wait_until(began_s + world.pace.lasting(lasts_s))
        ended_s = time.monotonic()
        never_down(world, judge, began_s, ended_s)
        world.offered["main"] = world.MUCH
        recovered(world, judge, operator)
        if not acts_meanwhile:
            replanned(world, judge, ended_s)
        if reason is None:
            judge.in_time(
                Column.REASON,
                "up to date",
                lambda: world.status().get("limitedBy") == "Budget",
                max(LOOK_S, world.pace.cycles(1) - (time.monotonic() - ended_s)),
            )
        conclude(world, judge, operator, began_s)

    return Row(name=name, run=run)


def recovered(world: World, judge: Judge, operator: Operator, *, more_s: float = 0.0) -> None:
    """Check the recovery: `main` has all replicas that its budget allows, and the status of `bad` has the reason.

    `more_s` is allowed in addition to two cycles.
    """
    took_s = judge.in_time(
        Column.RECOVERY,
        f"main has {world.CAPPED} replicas",
        lambda: world.replicas("main-plenty") == world.CAPPED,
        world.pace.cycles(2) + more_s,
    )
    bad = world.condition("bad", "Ready")
    judge.hold(
        Column.OTHERS,
        took_s is not None and bad.get("reason") == "InvalidSpec" and operator.alive(),
        f"main was served beside a pipeline that is {bad.get('reason', 'without a reason')}",
    )


def conclude(world: World, judge: Judge, operator: Operator, began_s: float, *, others_remove: bool = False) -> None:
    """Check the promises about the whole row, and that a restart with nothing changed writes nothing.

    With `others_remove`, another controller removes replicas.
    """
    within_caps(world, judge, began_s, desired_only=others_remove)
    judge.not_applicable(Column.ONE_WRITER, "one operator")
    restarted(world, judge, operator)


def within_caps(world: World, judge: Judge, began_s: float, *, desired_only: bool = False) -> None:
    """Check that no budget of a pipeline and no capacity of a pool was ever exceeded.

    With `desired_only`, pods beyond the desired replicas are not counted: other controllers create them, as the surge
    of a roll-out.
    """
    books = world.recorder.since(began_s)
    for name, budget in world.BUDGETS.items():
        most = max(spend(replace(entry, pods={}) if desired_only else entry, name) for entry in books)
        judge.hold(Column.CAPS, most <= budget + _EPSILON, f"{name} ${most:.2f} of ${budget:.2f}/h")
    for name, capacity in world.INSTANCES.items():
        most = max(instances(entry, name) for entry in books)
        judge.hold(Column.CAPS, most <= capacity, f"{name} {most:g} of {capacity}")


def restarted(world: World, judge: Judge, operator: Operator) -> None:
    """Check that a restarted operator writes nothing in three cycles when nothing has changed.

    If the new process could not read the metrics in time, as on a busy machine, it is restarted once more.
    """
    for _ in range(_ATTEMPTS):
        until(world.settled, what="all Deployments to have their pods")
        before = _at_rest(world, operator)
        operator.stop()
        world.again(operator)
        until(lambda: operator.cycles() >= 3, what="three cycles after the restart")
        changed = _changed(before, world.versions())
        if not changed or _METRICS_PROBLEM not in operator.log():
            judge.hold(Column.RESTART, not changed, changed or f"nothing in {operator.cycles()} cycles")
            return
    judge.not_applicable(Column.RESTART, f"metrics were missing at times in {_ATTEMPTS} attempts: the machine is busy")


def _at_rest(world: World, operator: Operator) -> dict[str, dict[str, str]]:
    """Wait until two whole cycles have written nothing, with metrics of all pods; return all versions."""
    until(operator.cycles, what="a cycle")  # it may have started just now
    before, cycles, last = world.versions(), operator.cycles(), ""
    deadline_s = time.monotonic() + _SOON_S + 9 * world.pace.interval_s
    while time.monotonic() < deadline_s:
        complete = _metrics_of_all(world)  # read first: later writes are in the versions
        rested = operator.cycles() - cycles
        now = world.versions()
        if now != before:
            last = _changed(before, now)
            before, cycles = now, operator.cycles()
        elif complete and rested >= _RESTED:
            return before
        time.sleep(0.2)
    raise AssertionError(f"the operator still writes: {last or 'metrics are missing'}")


def _changed(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> str:
    """Return the fields that changed, as text; empty without a change."""
    return "; ".join(
        f"{name} {field}: {before.get(name, {}).get(field)} -> {value}"
        for name, fields in after.items()
        for field, value in fields.items()
        if before.get(name, {}).get(field) != value
    )


def replanned(world: World, judge: Judge, since_s: float) -> None:
    """Check that `spare` moves to the other pool within two cycles after the pending deadline."""
    within_s = world.pace.lasting(60) + world.pace.cycles(2) - (time.monotonic() - since_s)
    judge.in_time(
        Column.PENDING,
        "spare moves to plenty",
        lambda: world.replicas("spare-plenty") > 0,
        max(LOOK_S, within_s),
    )


def never_down(world: World, judge: Judge, began_s: float, ended_s: float) -> None:
    """Check that no replica was removed except the one that cannot be placed."""
    for name in ("main-plenty", "other-plenty"):
        counts = [entry.desired[name] for entry in world.recorder.since(began_s) if entry.at_s <= ended_s]
        down = any(after < before for before, after in pairwise(counts))
        judge.hold(Column.NEVER_DOWN, not down, f"{name} {counts[0]}..{counts[-1]}")


def wait_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


# -- running


def run_row(world: World, row: Row) -> dict[Column, Cell]:
    """Run a row and restore the base load. An exception violates all promises without a verdict."""
    judge = Judge()
    try:
        row.run(world, judge)
    except Exception as error:  # noqa: BLE001 -- it becomes a verdict, and the other rows run
        why = f"the row failed: {type(error).__name__}: {error}"
        for column in Column:
            if column not in judge.cells:
                judge.cells[column] = Cell(verdict="violated", why=why)
                why = "the row failed"
    finally:
        world.end()
    for column in Column:
        judge.not_applicable(column, "not affected by this fault")
    return {column: judge.cells[column] for column in Column}


def table(cells: Mapping[str, Mapping[Column, Cell]]) -> str:
    """Return the matrix as text: a line per fault, a column per promise, and below it the reasons."""
    marks = {"held": "held", "violated": "VIOLATED", "n/a": "-"}
    width = max(len(name) for name in cells) + 2
    lines = [f"  {number}  {column.value}" for number, column in enumerate(Column, 1)]
    lines += ["", " " * width + "".join(f"{number:<10}" for number in range(1, len(Column) + 1))]
    lines += [
        f"{name:<{width}}" + "".join(f"{marks[row[column].verdict]:<10}" for column in Column).rstrip()
        for name, row in cells.items()
    ]
    for verdict, title in (("violated", "violated"), ("n/a", "not applicable")):
        found = [
            f"  {name}, {column.value}: {row[column].why}"
            for name, row in cells.items()
            for column in Column
            if row[column].verdict == verdict
        ]
        lines += ["", f"{title}:", *(found or ["  none"])]
    return "\n".join(lines)


def violated(row: Mapping[Column, Cell]) -> dict[str, str]:
    """Return the reason of each violated promise of a row."""
    return {column.value: cell.why for column, cell in row.items() if cell.verdict == "violated"}


def document(cells: Mapping[str, Mapping[Column, Cell]]) -> list[dict[str, Any]]:
    """Return the matrix as JSON."""
    return [
        {
            "fault": name,
            "cells": [
                {"promise": column.value, "verdict": cell.verdict, "why": cell.why} for column, cell in row.items()
            ],
        }
        for name, row in cells.items()
    ]
