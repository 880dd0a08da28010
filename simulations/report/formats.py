"""Numbers as text: money, shares, times, and the range over the seeds."""

import math
from collections.abc import Callable

from controller.core.messages.phrases import duration

Words = Callable[[float], str]

MISSING = "–"
HOURS_PER_MONTH = 730


def money(usd: float | None) -> str:
    """Return an amount in USD as text, such as `$1,234.50` or `$0.125`; `–` for None."""
    if usd is None:
        return MISSING
    whole_cents = abs(usd * 100 - round(usd * 100)) < 1e-6
    return f"${usd:,.2f}" if abs(usd) >= 1 or whole_cents else f"${usd:.3f}"


def per_month(usd_per_hour: float | None) -> str:
    """Return what an hourly cost in USD is in a month of 730 h, as text, such as `$4,526/month`; `–` for None."""
    if usd_per_hour is None:
        return MISSING
    usd = abs(usd_per_hour) * HOURS_PER_MONTH
    sign = "−" if usd_per_hour < 0 else ""
    return f"{sign}{f'${usd:,.0f}' if usd >= 10 else money(usd)}/month"


def money_month(usd_per_hour: float | None) -> str:
    """Return what an hourly cost in USD is in a month of 730 h, as an amount such as `$4,526`; `–` for None."""
    return per_month(usd_per_hour).removesuffix("/month")


def money_precise(usd: float) -> str:
    """Return a small amount in USD with three significant digits, such as `$0.0123`."""
    return money(usd) if usd >= 1 or usd < 0.0001 else f"${usd:#.3g}"


def per_hour_and_month(usd_per_hour: float | None) -> str:
    """Return an hourly cost in USD as text, such as `$6.20/h ($4,526/month)`; `–` for None."""
    return MISSING if usd_per_hour is None else f"{money(usd_per_hour)}/h ({per_month(usd_per_hour)})"


def users(number_of: float) -> str:
    """Return a number of users, which may be a mean, as text: `405`, `3.5`, or `under 0.1`, which is not 0."""
    if 0 < number_of < 0.05:
        return "under 0.1"
    return count(number_of)


def share(value: float | None) -> str:
    """Return a share (0–1) as text, such as `99.5 %`; `–` for None.

    Only 1 is written as 100 %, and only 0 as 0 %: other shares get up to three digits after the
    point, or are `over 99.999 %` or `under 0.001 %`.
    """
    if value is None:
        return MISSING
    for digits in (1, 2, 3):
        text = f"{value * 100:.{digits}f}"
        if value in {0, 1} or (float(text) != 100 and float(text) != 0):
            return ("100" if value == 1 else "0" if value == 0 else text) + " %"
    return "over 99.999 %" if value > 0.5 else "under 0.001 %"


def ratio(value: float | None) -> str:
    """Return a ratio as text, such as `1.25 ×`; `–` for None."""
    return MISSING if value is None else f"{value:.2f} ×"


def latency(seconds: float | None) -> str:
    """Return a latency as text; None means that it is infinite, because too many items had no answer."""
    return "no answer" if seconds is None else duration(seconds)


def count(value: float | None) -> str:
    """Return a count, or a mean of counts, as text, such as `1,234` or `3.5`; `–` for None."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.1f}"


def clock(seconds: float) -> str:
    """Return a time since the run began as text: m:ss, or h:mm:ss from one hour on."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def span(seconds: float) -> str:
    """Return a length of time as text in hours, minutes or seconds, such as `1.5 h` or `30 s`."""
    for unit, length_s in (("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.4g} {unit}"
    return f"{seconds:.4g} s"


def spread(low_high: tuple[float, float] | None, words: Words) -> str:
    """Return a range over seeds as `LOWEST to HIGHEST`, each by `words`; empty for None, or if both ends agree."""
    if low_high is None or math.isclose(*low_high, rel_tol=1e-9, abs_tol=1e-12):
        return ""
    low, high = (words(value) for value in low_high)
    return f"{low} to {high}" if low != high else ""


def listed(names: list[str]) -> str:
    """Return names joined by commas, with "and" before the last one."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def plural(number_of: int, noun: str) -> str:
    """Return a number with its noun, such as `1 seed` or `3 seeds`."""
    return f"{number_of:,} {noun}" + ("" if number_of == 1 else "s")


def change(share_more: float) -> str:
    """Return a relative difference in percent with its sign, such as `+12 %` for 0.12."""
    return f"{share_more:+.0%}".replace("-", "−").replace("%", " %")
