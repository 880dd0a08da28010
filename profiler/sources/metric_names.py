"""What the names of metrics tell: that a collector has changed them, and that they count completed items. Pure."""

import re

from profiler.sources.promql_syntax import UnsupportedQuery, metric_names

_BETWEEN = "[:_.]"
_AFTER = "total|ratio|count|seconds|milliseconds|bytes|celsius"
_SERVERS = "vllm|sglang|tgi|trtllm|nv_inference|speech_stage"
_COMPLETED = re.compile(
    rf"(.+[:_.])?(success(es)?|succeeded|successful|complet(ed|ions?)|finished|served|processed)({_BETWEEN}({_AFTER}))*"
    rf"|(.+[:_.])?({_SERVERS}){_BETWEEN}"
    r"(count|.*(exec_count|items_total|tokens_total|(latency|duration|time|token)(_seconds|_us|_ms)?(_sum|_count|_bucket)?))"
)


def renamed_series(name: str) -> str:
    """Return a selector of the series that may be those of the metric `name` under another name.

    OpenTelemetry collectors and exporters replace colons, add a prefix, and add or remove units and `_total`.
    """
    words = [word for word in re.split(_BETWEEN, name) if word]
    if len(words) > 1 and words[-1] in _AFTER.split("|"):
        words.pop()
    pattern = f"(.+{_BETWEEN})?{_BETWEEN.join(words)}({_BETWEEN}({_AFTER}))*"
    return f'{{__name__=~"{pattern}", __name__!="{name}"}}'


def completion_counters(query: str) -> tuple[str, ...]:
    """Return the metrics of `query` if all of them count completed items, judged by their names; empty otherwise."""
    try:
        names = tuple(dict.fromkeys(metric_names(query)))
    except UnsupportedQuery:
        return ()
    return names if all(_COMPLETED.fullmatch(name) for name in names) else ()
