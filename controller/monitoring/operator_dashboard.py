"""The dashboard Operator: cycles, API requests, metrics and resources of the operator's own replicas."""

from controller.monitoring.grafana import Dashboard, Kind, Panel, Query, Row
from controller.monitoring.promql import INSTALLATION, PIPELINE, gauge, series

_REPLICA = "{{pod}} {{instance}}"
_ANSWERED = gauge("metric_readings", by="result", where='result="Answered"')


def _of(name: str) -> str:
    return gauge(name, by=INSTALLATION)


def _rate(name: str, by: str) -> str:
    return f"sum by ({by}) (rate({series(name)}[$__rate_interval]))"


def _of_operator(expr: str) -> str:
    """Return `expr`, a metric that every program exports, of the operator's replicas only."""
    return f"{expr} and on (job, instance) {series('leader')}"


def _duration(quantile: float) -> str:
    return f"histogram_quantile({quantile:g}, {_rate('cycle_duration_seconds_bucket', 'le')})"


OPERATOR = Dashboard(
    uid="sluice-operator",
    title="Sluice / Operator",
    description="The operator itself: whether it decides, how long a cycle takes, and what it needs.",
    rows=(
        Row(
            title="Decisions",
            panels=(
                Panel(
                    title="Age of the last decision",
                    question="Does the operator decide? The age is to stay below a few intervals.",
                    kind=Kind.NUMBER,
                    unit="s",
                    width=6,
                    queries=(
                        Query(expr=f"time() - {_of('last_success_timestamp_seconds')}", legend="{{job}}: age"),
                        Query(expr=_of("cycle_interval_seconds"), legend="{{job}}: interval"),
                    ),
                ),
                Panel(
                    title="Pipelines and invalid resources",
                    question="How many pipelines are managed, and how many resources have an invalid spec?",
                    kind=Kind.NUMBER,
                    width=6,
                    queries=(
                        Query(expr=_of("pipelines"), legend="{{job}}: pipelines"),
                        Query(expr=_of("invalid_resources"), legend="{{job}}: invalid"),
                    ),
                ),
                Panel(
                    title="Leader",
                    question="Which replica leads, and when did that change?",
                    kind=Kind.STATES,
                    most=1,
                    width=12,
                    queries=(Query(expr=series("leader"), legend=_REPLICA),),
                ),
                Panel(
                    title="Cycles",
                    question="How many cycles per second succeed and fail?",
                    unit="ops",
                    queries=(Query(expr=_rate("cycles_total", "outcome"), legend="{{outcome}}"),),
                ),
                Panel(
                    title="Replica changes written",
                    question="How many replica changes per second does the operator write, and how do they end?",
                    unit="ops",
                    queries=(Query(expr=_rate("scale_writes_total", "outcome"), legend="{{outcome}}"),),
                ),
            ),
        ),
        Row(
            title="Time",
            panels=(
                Panel(
                    title="Duration of a cycle",
                    question="Does a cycle end before the next one is due?",
                    unit="s",
                    queries=(
                        Query(expr=_duration(0.5), legend="median"),
                        Query(expr=_duration(0.99), legend="99th percentile"),
                        Query(expr=_of("cycle_interval_seconds"), legend="{{job}}: interval"),
                    ),
                ),
                Panel(
                    title="Parts of a cycle",
                    question="What takes the time: reading, deciding, writing statuses, or scaling? In s per s.",
                    stacked=True,
                    unit="percentunit",
                    queries=(Query(expr=_rate("cycle_part_seconds_total", "part"), legend="{{part}}"),),
                ),
            ),
        ),
        Row(
            title="API server and metrics",
            panels=(
                Panel(
                    title="API requests",
                    question="How many requests per second does the operator send to the API server?",
                    unit="reqps",
                    stacked=True,
                    queries=(Query(expr=_rate("api_requests_total", "verb"), legend="{{verb}}"),),
                ),
                Panel(
                    title="Statuses refused",
                    question="Of how many pipelines does the API server refuse the status, as a failing webhook does?",
                    kind=Kind.NUMBER,
                    width=6,
                    queries=(Query(expr=f"sum({gauge('pipeline_status_refused', by=PIPELINE)})", legend="refused"),),
                ),
                Panel(
                    title="Clock skew",
                    question="How far is the API server's clock ahead of the operator's?",
                    kind=Kind.NUMBER,
                    unit="s",
                    width=6,
                    queries=(Query(expr=_of("clock_skew_seconds"), legend="{{job}}"),),
                ),
                Panel(
                    title="Metrics answered",
                    question="Which share of the readings that a cycle needs (demand, latency, rules, throughput of "
                    "the stages) were numbers?",
                    unit="percentunit",
                    most=1,
                    queries=(
                        Query(
                            expr=f"sum({_ANSWERED}) / sum({gauge('metric_readings', by='result')})",
                            legend="answered",
                        ),
                    ),
                ),
                Panel(
                    title="Unanswered queries",
                    question="Which share of the queries to Prometheus had no answer within the cycle, by kind?",
                    unit="percentunit",
                    most=1,
                    queries=(Query(expr=gauge("metrics_unanswered_ratio", by="kind"), legend="{{kind}}"),),
                ),
                Panel(
                    title="Absent readings",
                    question="Why are readings absent that a cycle needs?",
                    stacked=True,
                    queries=(
                        Query(
                            expr=gauge("metric_readings", by="result", where='result!="Answered"'), legend="{{result}}"
                        ),
                    ),
                ),
                Panel(
                    title="Metrics tiers",
                    question="How many pipelines read their metrics from Prometheus, from the pods, or from no source "
                    "(Holding)?",
                    stacked=True,
                    queries=(
                        Query(
                            expr=f"count by (source) ({gauge('metrics_source', by=f'{PIPELINE}, source')})",
                            legend="{{source}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            title="Resources",
            panels=(
                Panel(
                    title="Memory",
                    question="How much memory does each replica of the operator use?",
                    unit="bytes",
                    queries=(Query(expr=_of_operator(series("process_resident_memory_bytes")), legend=_REPLICA),),
                ),
                Panel(
                    title="CPU",
                    question="How many cores does each replica of the operator use?",
                    queries=(
                        Query(
                            expr=_of_operator(f"rate({series('process_cpu_seconds_total')}[$__rate_interval])"),
                            legend=_REPLICA,
                        ),
                    ),
                ),
                Panel(
                    title="Versions",
                    question="Which version does each replica run?",
                    kind=Kind.TABLE,
                    queries=(Query(expr=series("build_info")),),
                ),
                Panel(
                    title="Restarts",
                    question="Since when does each replica run?",
                    kind=Kind.NUMBER,
                    unit="dateTimeFromNow",
                    queries=(
                        Query(
                            expr=f"1000 * {_of_operator(series('process_start_time_seconds'))}",
                            legend=_REPLICA,
                        ),
                    ),
                ),
            ),
        ),
    ),
)
"""The dashboard."""
