"""What `sluice profile` prints: a table and a plot for people, the YAML to paste, and the same as JSON."""

import json
import math
from collections.abc import Sequence
from typing import Any

from controller.commands.terminal import Page
from controller.core.messages.phrases import duration, law_words, number
from optimizer.model import Batching, ServiceLaw
from profiler.load_test.analysis import Analysis
from profiler.load_test.method import Point, Profile

_BAR = 40  # columns of the longest bar of the plot


def manifest_of(analysis: Analysis, source: str, startup_s: float | None = None) -> str:
    """Return the lines of a placement that say what was measured, as YAML."""
    lines = [f"serviceTime: {{{', '.join(_law_fields(analysis.law))}, source: {json.dumps(source)}}}"]
    if (kind := analysis.batching) is Batching.CONTINUOUS or analysis.measured > 1:
        note = "" if analysis.limit is not None else "   # not reached: set the server's own limit"
        lines.append(f"batching: {{kind: {kind.value}, max: {analysis.limit or analysis.measured}}}{note}")
    if analysis.concurrency > 1:
        lines.append(f"concurrency: {analysis.concurrency}")
    if startup_s is not None:
        lines.append(f"startup: {max(1, math.ceil(startup_s))}s")
    return "\n".join(lines) + "\n"


def document_of(analysis: Analysis, profile: Profile | None, *, source: str, startup_s: float | None) -> dict[str, Any]:
    """Return the profile as JSON."""
    law = analysis.law
    points = () if profile is None else profile.points
    return {
        "batching": analysis.batching.value,
        "batch_max": analysis.limit,
        "concurrency": analysis.concurrency,
        "fixed_s": law.fixed_s,
        "per_item_s": law.per_item_s,
        "floor_s": law.floor_s,
        "law_points": [{"batch": size, "service_s": time_s} for size, time_s in law.points],
        "prefill_s": law.prefill_s,
        "cv": law.cv,
        "relative_error": _finite(analysis.relative_error),
        "capacity_rps": analysis.capacity_rps,
        "saturation_rps": analysis.saturation_rps,
        "counters_used": analysis.counters_used,
        "startup_s": startup_s,
        "first_answer_s": None if profile is None else profile.first_answer_s,
        "warm_up_s": None if profile is None else profile.warm_up_s,
        "memory_per_session_bytes": None if profile is None else profile.memory_per_session_bytes,
        "slo_rps": None if profile is None else profile.slo_rps,
        "stopped": None if profile is None else profile.stopped,
        "notes": list(analysis.notes if profile is None else profile.notes),
        "points": [
            {
                "loop": point.loop,
                "concurrency": _finite(point.concurrency),
                "batch": point.batch,
                "rate_rps": point.rate_rps,
                "service_mean_s": point.service_mean_s,
                "p50_s": _finite(point.p50_s),
                "p95_s": _finite(point.p95_s),
                "failed": point.failed,
            }
            for point in points
        ],
        "service_time": manifest_of(analysis, source, startup_s),
    }


def show_profile(
    page: Page, analysis: Analysis, profile: Profile | None, *, source: str, startup_s: float | None, slo: str | None
) -> None:
    """Print a profile for people."""
    if profile is not None:
        page.table(
            ("load", ">in flight", ">batch", ">answers/s", ">p50", ">p95", ">failed"),
            [_row(point) for point in profile.points],
        )
        page.say()
        for line in _plot([point for point in profile.points if point.loop == "closed"]):
            page.say(line)
        page.say()
    page.say(_server_words(analysis), style="bold")
    error = "not known" if not math.isfinite(analysis.relative_error) else f"± {analysis.relative_error:.1%}"
    page.say(
        f"capacity: {number(analysis.capacity_rps)} items/s ({error}); the most that were answered: "
        f"{number(analysis.saturation_rps)} items/s"
    )
    if profile is not None:
        page.say(f"ended after {profile.took_s:.0f} s: {profile.stopped}")
        page.say(
            f"first answer after {duration(profile.first_answer_s)}; steady after {duration(profile.warm_up_s)} of load"
        )
        if profile.memory_per_session_bytes is not None:
            page.say(f"memory of a session: {number(profile.memory_per_session_bytes / 2**20)} MiB")
        if profile.slo_rps is not None and slo is not None:
            page.say(f"within {slo}: up to {number(profile.slo_rps)} requests/s", style="bold")
    if startup_s is not None:
        page.say(f"start-up of its pod: {duration(startup_s)}")
    for note in analysis.notes if profile is None else profile.notes:
        page.say(f"note: {note}")
    page.say()
    page.say("for the placement in the manifest:", style="bold")
    for line in manifest_of(analysis, source, startup_s).splitlines():
        page.say(line, indent=1)


def _server_words(analysis: Analysis) -> str:
    law = law_words(analysis.law)
    if analysis.batching is Batching.CONTINUOUS:
        limit = f"{analysis.limit} run at most" if analysis.limit else f"more than {analysis.measured} run"
        return f"continuous batching, {limit}: {law} (cv {number(analysis.law.cv)})"
    if analysis.measured > 1:
        limit = f"of at most {analysis.limit}" if analysis.limit else f"of {analysis.measured} and more"
        at_once = f", {analysis.concurrency} at once" if analysis.concurrency > 1 else ""
        return f"batches {limit}{at_once}: {law} (cv {number(analysis.law.cv)})"
    at_once = "one item at a time" if analysis.concurrency == 1 else f"{analysis.concurrency} items at once"
    return f"{at_once}, no batches: {law} (cv {number(analysis.law.cv)})"


def _row(point: Point) -> tuple[str, ...]:
    load = "closed" if point.loop == "closed" else "open"
    failed = "-" if point.failed <= 0 else f"{point.failed:.1%}"
    inside = f"{point.concurrency:.3g}" if math.isfinite(point.concurrency) else "-"
    return (
        load,
        inside,
        f"{point.batch:.1f}",
        f"{point.rate_rps:.4g}",
        _time(point.p50_s),
        _time(point.p95_s),
        failed,
    )


def _plot(points: Sequence[Point]) -> list[str]:
    """Return a bar for the answers per second of each number of clients."""
    most = max((point.rate_rps for point in points), default=0.0)
    if not most:
        return []
    lines = ["answers/s by clients"]
    for point in points:
        bar = "█" * max(1, round(_BAR * point.rate_rps / most))
        lines.append(f"  {point.concurrency:>4.0f} {bar:<{_BAR}} {point.rate_rps:.4g}, p95 {_time(point.p95_s)}")
    return lines


def _law_fields(law: ServiceLaw) -> list[str]:
    if law.points:
        fields = ["points: {" + ", ".join(f'"{size}": {_yaml(time_s)}' for size, time_s in law.points) + "}"]
    else:
        named = (("fixed", law.fixed_s), ("perItem", law.per_item_s), ("floor", law.floor_s))
        fields = [f"{name}: {_yaml(time_s)}" for name, time_s in named if time_s >= 5e-7]
    if law.prefill_s >= 5e-7:
        fields.append(f"prefill: {_yaml(law.prefill_s)}")
    return [*fields, f'cv: "{law.cv:.2f}"']


def _yaml(time_s: float) -> str:
    """Return a time with three digits, in a unit in which it is a whole number."""
    micros = round(float(f"{time_s * 1e6:.3g}"))
    return f"{micros // 1000}ms" if micros % 1000 == 0 else f"{micros}us"


def _time(seconds: float) -> str:
    return duration(seconds) if math.isfinite(seconds) else "-"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
