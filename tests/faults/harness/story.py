"""The fault matrix: rows are faults, columns are promises, a cell is what real servers have shown.

Most rows tell one story. Three pipelines serve their base load, and a fourth cannot be used. At once a fault begins,
one pool stops delivering and takes a replica along, and the load does what tempts a careless operator: it falls where
metrics are at fault, so that no data and no load look alike, else it rises far above what the budget pays for. The
fault ends; then the operator is started anew with nothing changed.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import Any, Literal

from world import Operator, World, instances, spend, until

Fault = Callable[[World, Operator], contextlib.AbstractContextManager[None]]

_SOON_S = 45.0
LOOK_S = 1.0
"""What one look takes on a busy machine, at something that may have been there for long."""
_EPSILON = 1e-6
_ATTEMPTS = 3
_METRICS_PROBLEM = '"message": "metrics: '


class Column(Enum):
    """The promises."""

    NEVER_DOWN = "never down on missing data"
    CAPS = "never above a cap"
    ONE_WRITER = "never two writers"
    PENDING = "pending leads to a new plan"
    RESTART = "a restart writes nothing"
    OTHERS = "one bad stops no other"
    RECOVERY = "recovery within 2 cycles"
    REASON = "the reason is in the status"


Verdict = Literal["held", "violated", "n/a"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What became of a promise under a fault, and the figures or the reason."""

    verdict: Verdict
    why: str


@dataclass(slots=True)
class Judge:
    """Fills a row's cells. A promise that is looked at more than once is violated when it is so once."""

    cells: dict[Column, Cell] = field(default_factory=dict)

    def hold(self, column: Column, ok: object, why: str) -> None:
        """Say whether a promise was held, and by which figures."""
        before = self.cells.get(column)
        if before is not None and before.verdict == "violated":
            return
        told = why if before is None or not ok or before.verdict != "held" else f"{before.why}; {why}"
        self.cells[column] = Cell(verdict="held" if ok else "violated", why=told)

    def shorten(self, column: Column, why: str) -> None:
        """Tell in fewer words why a promise was held, if it was."""
        if self.cells[column].verdict == "held":
            self.cells[column] = Cell(verdict="held", why=why)

    def explain(self, column: Column, why: str) -> None:
        """Add what is known about a promise."""
        cell = self.cells[column]
        self.cells[column] = replace(cell, why=f"{cell.why}; {why}")

    def not_applicable(self, column: Column, why: str) -> None:
        """Say why a promise is not touched, unless something is known about it."""
        self.cells.setdefault(column, Cell(verdict="n/a", why=why))

    def in_time(self, column: Column, what: str, holds: Callable[[], object], within_s: float) -> float | None:
        """Hold a promise that something happens within a time; return how long it took, None when it did not."""
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
    """A fault. `run` gets a world at rest and leaves it in any state; the cells it does not fill are not applicable."""

    name: str
    run: Callable[[World, Judge], None]


# -- the story


def settle(world: World, *operators: Operator) -> None:
    """Wait until the base load is served, everything has a status, and cycles change nothing."""
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
    told_after_s: float = 0.0,
    acts_meanwhile: bool = False,
) -> Row:
    """Return the row of a fault in the usual story.

    `reason` looks for the fault's name in the status while it lasts; without one, the status must be that of now within
    a cycle of the fault's end; `told_after_s` is how long what was read before counts. `acts_meanwhile` says that the
    API server can be read and written while it lasts.
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
                judge.in_time(Column.REASON, "named", lambda: reason(world), world.pace.cycles(1) + told_after_s)
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
    """Hold that what is due is done: `main` has all that its budget pays for, and `bad` is told why it has nothing.

    `more_s` is what the two cycles have to wait for.
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
        f"main was served beside a pipeline that is {bad.get('reason', 'not told of')}",
    )


def conclude(world: World, judge: Judge, operator: Operator, began_s: float, *, others_remove: bool = False) -> None:
    """Hold what is true of the whole row, and that a restart with nothing changed writes nothing.

    `others_remove` says that somebody else takes replicas away.
    """
    within_caps(world, judge, began_s, asked_for=others_remove)
    judge.not_applicable(Column.ONE_WRITER, "one operator")
    restarted(world, judge, operator)


def within_caps(world: World, judge: Judge, began_s: float, *, asked_for: bool = False) -> None:
    """Hold that neither a pipeline's budget nor a pool's capacity was ever exceeded.

    With `asked_for` pods beyond the replicas asked for are not counted: others make them, whatever Sluice does, as the
    surge of a roll-out.
    """
    books = world.recorder.since(began_s)
    for name, budget in world.BUDGETS.items():
        most = max(spend(replace(entry, pods={}) if asked_for else entry, name) for entry in books)
        judge.hold(Column.CAPS, most <= budget + _EPSILON, f"{name} ${most:.2f} of ${budget:.2f}/h")
    for name, capacity in world.INSTANCES.items():
        most = max(instances(entry, name) for entry in books)
        judge.hold(Column.CAPS, most <= capacity, f"{name} {most:g} of {capacity}")


def restarted(world: World, judge: Judge, operator: Operator) -> None:
    """Hold that an operator that is started anew with nothing changed writes nothing in three cycles.

    Something has changed where the new one could not read the metrics in time, which happens on a busy machine: then it
    is started once more.
    """
    for _ in range(_ATTEMPTS):
        until(world.settled, what="everything to be at rest")
        cycles = operator.cycles()  # it may have been started only now
        until(lambda: operator.cycles() >= cycles + 2, what="two cycles")  # noqa: B023
        before = _at_rest(world)
        operator.stop()
        world.again(operator)
        until(lambda: operator.cycles() >= 3, what="three cycles after the restart")
        changed = _changed(before, world.versions())
        if not changed or _METRICS_PROBLEM not in operator.log():
            judge.hold(Column.RESTART, not changed, changed or f"nothing in {operator.cycles()} cycles")
            return
    judge.not_applicable(Column.RESTART, f"metrics came and went on this busy machine in {_ATTEMPTS} attempts")


def _at_rest(world: World) -> dict[str, dict[str, str]]:
    """Wait until the operator has written nothing for two cycles, and all pods are heard of, new ones too.

    Return all it could write.
    """
    calm_s = 2 * world.pace.interval_s + 0.5
    before, since_s, last = world.versions(), time.monotonic(), ""
    deadline_s = since_s + _SOON_S + 3 * calm_s
    while time.monotonic() < deadline_s:
        heard = _metrics_of_all(world)  # looked at first: what is written after it is in the versions
        now = world.versions()
        if now != before:
            last = _changed(before, now)
            before, since_s = now, time.monotonic()
        elif heard and time.monotonic() - since_s > calm_s:
            return before
        time.sleep(0.2)
    raise AssertionError(f"the operator is not at rest: {last or 'metrics are missing'}")


def _changed(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> str:
    """Return what was written, with the fields that changed by it; nothing where nothing was."""
    return "; ".join(
        f"{name} {field}: {before.get(name, {}).get(field)} -> {value}"
        for name, fields in after.items()
        for field, value in fields.items()
        if before.get(name, {}).get(field) != value
    )


def replanned(world: World, judge: Judge, since_s: float) -> None:
    """Hold that `spare` goes on without the pool that does not deliver: after its deadline, within two cycles."""
    within_s = world.pace.lasting(60) + world.pace.cycles(2) - (time.monotonic() - since_s)
    judge.in_time(
        Column.PENDING,
        "spare moves to plenty",
        lambda: world.replicas("spare-plenty") > 0,
        max(LOOK_S, within_s),
    )


def never_down(world: World, judge: Judge, began_s: float, ended_s: float) -> None:
    """Hold that nothing but the replica that cannot be placed was taken away."""
    for name in ("main-plenty", "other-plenty"):
        counts = [entry.desired[name] for entry in world.recorder.since(began_s) if entry.at_s <= ended_s]
        down = any(after < before for before, after in pairwise(counts))
        judge.hold(Column.NEVER_DOWN, not down, f"{name} {counts[0]}..{counts[-1]}")


def wait_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


# -- running


def run_row(world: World, row: Row) -> dict[Column, Cell]:
    """Run a row on a world at rest; leave it at rest. A story that breaks off violates what it did not come to."""
    judge = Judge()
    try:
        row.run(world, judge)
    except Exception as error:  # noqa: BLE001 -- the table has a place for it, and the other rows go on
        why = f"the story broke off: {type(error).__name__}: {error}"
        for column in Column:
            if column not in judge.cells:
                judge.cells[column] = Cell(verdict="violated", why=why)
                why = "the story broke off"
    finally:
        world.end()
    for column in Column:
        judge.not_applicable(column, "not touched by this fault")
    return {column: judge.cells[column] for column in Column}


def table(cells: Mapping[str, Mapping[Column, Cell]]) -> str:
    """Return the matrix as text: a line per fault, a column per promise, and below it what is not held."""
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
    """Return, by promise, by what a row violates it."""
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
