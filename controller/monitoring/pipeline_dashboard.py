"""The dashboard Pipeline: SLA, demand, stages, replicas, cost and learned numbers of one pipeline."""

from controller.monitoring.grafana import Annotation, Dashboard, Kind, Panel, Query, Row, Variable
from controller.monitoring.promql import CUT_SESSIONS, OBJECTIVE, PIPELINE, burn_rate, gauge, missed_share, series

LINK = (
    "/d/sluice-pipeline?var-namespace=${__field.labels.namespace}&var-pipeline=${__field.labels.pipeline}"
    "&${__url_time_range}"
)
"""The URL of this dashboard for the pipeline of a series."""
_HERE = 'namespace="$namespace", pipeline="$pipeline"'
_STAGE = "{{stage}}"
_PLACEMENT = "{{stage}} on {{pool}}"


def _of(name: str, by: str = PIPELINE) -> str:
    return gauge(name, by=by, where=_HERE)


def _per_unit(unit: str, divisor: str) -> str:
    """Return the PromQL for spend over observed demand, times `divisor`, of a pipeline with this unit of demand."""
    of_unit = gauge("pipeline_info", by=PIPELINE, where=f'{_HERE}, unit="{unit}"')
    demand = f"({_of('pipeline_observed_demand')} > 0)"
    return f"({_of('pipeline_spend_usd_per_hour')} / {demand}{divisor}) and {of_unit}"


_ERROR_BUDGET = (
    f"(latency above the SLA in {1 - OBJECTIVE:.0%} of the time; time without a known latency does not count)"
)

PIPELINE_DASHBOARD = Dashboard(
    uid="sluice-pipeline",
    title="Sluice / Pipeline",
    description="One pipeline: its SLA and error budget, demand and plan, stages, replicas, cost, learned numbers.",
    variables=(
        Variable(name="namespace", label="Namespace", metric=series("pipeline_sla_seconds")),
        Variable(
            name="pipeline",
            label="Pipeline",
            metric=series("pipeline_sla_seconds"),
            where='namespace="$namespace"',
        ),
    ),
    annotations=(
        Annotation(
            name="Replicas changed",
            query=Query(expr=f"1000 * {_of('pipeline_last_change_timestamp_seconds', f'{PIPELINE}, reason')}"),
            title="Replicas changed",
            text="reason: {{reason}}",
            tags="reason",
        ),
    ),
    rows=(
        Row(
            title="SLA",
            panels=(
                Panel(
                    title="Health",
                    question="What was the most severe problem of the pipeline, and when? The reasons are listed in "
                    "docs/reasons.md.",
                    kind=Kind.STATES,
                    most=1,
                    width=16,
                    queries=(Query(expr=_of("pipeline_health", f"{PIPELINE}, health"), legend="{{health}}"),),
                ),
                Panel(
                    title="Error budget left",
                    question=f"Which share of the error budget is left over the time shown {_ERROR_BUDGET}? "
                    "Below 0 it is used up.",
                    kind=Kind.NUMBER,
                    unit="percentunit",
                    least=None,
                    width=8,
                    queries=(
                        Query(expr=f"1 - ({missed_share('$__range', where=_HERE)}) / {1 - OBJECTIVE:g}", legend="left"),
                    ),
                ),
                Panel(
                    title="Latency",
                    question="Is the latency at the SLA's percentile within the SLA, and is it what the plan predicts?",
                    unit="s",
                    queries=(
                        Query(expr=_of("pipeline_latency_seconds"), legend="measured"),
                        Query(expr=_of("pipeline_planned_latency_seconds"), legend="predicted by the plan"),
                        Query(expr=_of("pipeline_sla_seconds"), legend="SLA"),
                        Query(
                            expr=_of("pipeline_overhead_seconds"),
                            legend="outside the stages",
                            empty_because="time outside the stages is measured only while no replica starts or stops",
                        ),
                    ),
                ),
                Panel(
                    title="Error budget burn",
                    question=f"How many times faster than allowed is the error budget used {_ERROR_BUDGET}?",
                    queries=(
                        Query(expr=burn_rate("1h", where=_HERE), legend="1 hour"),
                        Query(expr=burn_rate("6h", where=_HERE), legend="6 hours"),
                    ),
                ),
            ),
        ),
        Row(
            title="Demand and plan",
            panels=(
                Panel(
                    title="Demand against plan",
                    question="Does the plan follow the demand, in streams or requests per second? A limit that the "
                    "ingress is to admit means that not all can be served.",
                    queries=(
                        Query(expr=_of("pipeline_observed_demand"), legend="observed"),
                        Query(expr=_of("pipeline_demand"), legend="planned for"),
                        Query(
                            expr=_of("pipeline_admissible"),
                            legend="to admit",
                            empty_because="there is no limit while all demand can be served",
                        ),
                        Query(expr=_of("pipeline_refused_demand"), legend="above the limit"),
                    ),
                ),
                Panel(
                    title="Served share and limit",
                    question="Which share of the demand can be served within the SLA, and which limit keeps it from "
                    "all?",
                    unit="percentunit",
                    most=1,
                    queries=(
                        Query(expr=_of("pipeline_served_ratio"), legend="served"),
                        Query(
                            expr=_of("pipeline_limited", f"{PIPELINE}, limited_by"),
                            legend="limited by {{limited_by}}",
                            empty_because="all demand can be served",
                        ),
                    ),
                ),
                Panel(
                    title="Held changes",
                    question="Why does Sluice not change the replicas now? The reasons are listed in docs/reasons.md.",
                    kind=Kind.STATES,
                    queries=(
                        Query(
                            expr=_of("pipeline_hold", f"{PIPELINE}, reason"),
                            legend="{{reason}}",
                            empty_because="no change is held back",
                        ),
                    ),
                ),
                Panel(
                    title="Demand not observed",
                    question="Are the metrics of the demand missing, for how long, and by which factor is the last "
                    "demand raised meanwhile?",
                    unit="s",
                    queries=(
                        Query(expr=_of("demand_unseen_seconds"), legend="not observed"),
                        Query(expr=_of("demand_safety_factor"), legend="safety factor"),
                    ),
                ),
            ),
        ),
        Row(
            title="Stages",
            panels=(
                Panel(
                    title="Stages by pressure",
                    question="Which stage is the bottleneck? Pressure is 0.40 latency + 0.30 utilization + 0.30 queue.",
                    most=1,
                    queries=(Query(expr=_of("stage_pressure", "stage"), legend=_STAGE),),
                ),
                Panel(
                    title="Utilization",
                    question="Which share of the time are the replicas of each stage busy?",
                    unit="percentunit",
                    most=1,
                    queries=(Query(expr=_of("stage_utilization_ratio", "stage"), legend=_STAGE),),
                ),
                Panel(
                    title="Latency of the stages",
                    question="In which stage is the time spent (95th percentile of waiting plus service)?",
                    unit="s",
                    queries=(Query(expr=_of("stage_latency_seconds", "stage"), legend=_STAGE),),
                ),
                Panel(
                    title="Waiting items",
                    question="In front of which stage do items wait?",
                    queries=(Query(expr=_of("stage_queue_depth", "stage"), legend=_STAGE),),
                ),
                Panel(
                    title="Arrivals",
                    question="How many items per second arrive at each stage?",
                    unit="reqps",
                    queries=(Query(expr=_of("stage_arrivals_per_second", "stage"), legend=_STAGE),),
                ),
                Panel(
                    title="Streams refused and cut",
                    question="Are streams refused because no slot is free, or cut because their replica went away? "
                    f"Cuts need an ingress that exports {CUT_SESSIONS}.",
                    unit="ops",
                    queries=(
                        Query(expr=_of("stage_refusals_per_second", "stage"), legend="refused by {{stage}}"),
                        Query(
                            expr=f"sum(rate({CUT_SESSIONS}{{{_HERE}}}[$__rate_interval]))",
                            legend="cut",
                            empty_because="no ingress counts cut sessions, so that their number is unknown",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            title="Replicas",
            panels=(
                Panel(
                    title="Ready replicas",
                    question="How many replicas of each stage are ready, and on which pools?",
                    stacked=True,
                    queries=(Query(expr=_of("stage_replicas_ready", "stage, pool"), legend=_PLACEMENT),),
                ),
                Panel(
                    title="Desired replicas",
                    question="How many replicas does Sluice want for each stage, and on which pools?",
                    stacked=True,
                    queries=(Query(expr=_of("stage_replicas_desired", "stage, pool"), legend=_PLACEMENT),),
                ),
                Panel(
                    title="Replicas by pool",
                    question="On which pools does the pipeline run?",
                    stacked=True,
                    queries=(
                        Query(expr=f"sum by (pool) ({_of('stage_replicas_ready', 'stage, pool')})", legend="{{pool}}"),
                    ),
                ),
                Panel(
                    title="Time until replicas are ready",
                    question="When are the replicas that start on each pool expected to be ready?",
                    unit="s",
                    queries=(
                        Query(
                            expr=_of("pipeline_ready_in_seconds", "pool"),
                            legend="{{pool}}",
                            empty_because="no replica is starting, or one has no node yet",
                        ),
                    ),
                ),
                Panel(
                    title="Placements that plans avoid",
                    question="Which placements do plans avoid, because replicas did not start there?",
                    kind=Kind.STATES,
                    most=1,
                    limits=((1, "red"),),
                    queries=(
                        Query(
                            expr=_of("placement_unavailable", "stage, pool"),
                            legend=_PLACEMENT,
                            empty_because="no placement has failed lately",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            title="Cost",
            panels=(
                Panel(
                    title="Spend against budget",
                    question="What does the pipeline cost per hour, what does its plan cost, and what may it cost?",
                    unit="currencyUSD",
                    queries=(
                        Query(expr=_of("pipeline_spend_usd_per_hour"), legend="spend"),
                        Query(expr=_of("pipeline_cost_usd_per_hour"), legend="plan"),
                        Query(expr=_of("pipeline_budget_usd_per_hour"), legend="budget"),
                    ),
                ),
                Panel(
                    title="Cost per unit of work",
                    question="What does an hour of one stream cost, or a thousand requests?",
                    unit="currencyUSD",
                    queries=(
                        Query(expr=_per_unit("Streams", ""), legend="per stream-hour"),
                        Query(
                            expr=_per_unit("Requests", " / 3.6"),
                            legend="per 1,000 requests",
                            empty_because="a pipeline has one unit of demand, streams or requests",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            title="Learned against declared",
            panels=(
                Panel(
                    title="Service time, measured over declared",
                    question="How far are the measured service times from the declared ones? 1 is as declared.",
                    queries=(Query(expr=_of("placement_service_factor", "stage, pool"), legend=_PLACEMENT),),
                ),
                Panel(
                    title="Latency, measured over modelled",
                    question="How far is the latency of each stage from the modelled one? 1 is as modelled.",
                    queries=(
                        Query(
                            expr=_of("stage_latency_factor", "stage"),
                            legend=_STAGE,
                            empty_because="a stage is compared with the model only while no replica starts or stops",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
"""The dashboard."""
