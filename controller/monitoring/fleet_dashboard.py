"""The dashboard Fleet: money, health and pools of all pipelines."""

from controller.monitoring.grafana import Dashboard, Kind, Panel, Query, Row, Variable
from controller.monitoring.pipeline_dashboard import LINK
from controller.monitoring.promql import INSTALLATION, OBJECTIVE, PIPELINE, burn_rate, gauge, series

_HERE = 'namespace=~"$namespace"'
_MOST = 15
"""The most pipelines in a panel with one line for each."""
_NAME = "{{namespace}}/{{pipeline}}"


def _of(name: str, by: str = PIPELINE) -> str:
    return gauge(name, by=by, where=_HERE)


def _budget(name: str) -> str:
    return gauge(f"budget_{name}", by="budget")


def _pool(name: str) -> str:
    return gauge(name, by="pool")


FLEET = Dashboard(
    uid="sluice-fleet",
    title="Sluice / Fleet",
    description="All pipelines: what they cost, which are in trouble and why, and which pools they use.",
    variables=(Variable(name="namespace", label="Namespace", metric=series("pipeline_sla_seconds"), multi=True),),
    rows=(
        Row(
            title="Money",
            panels=(
                Panel(
                    title="Spend against budgets",
                    question="What do the pipelines cost per hour now, what do their plans cost, and what may they "
                    "cost? The fleet budget, and all spend, which it limits, are of all namespaces.",
                    unit="currencyUSD",
                    queries=(
                        Query(expr=f"sum({_of('pipeline_spend_usd_per_hour')})", legend="spend"),
                        Query(expr=f"sum({_of('pipeline_cost_usd_per_hour')})", legend="plans"),
                        Query(expr=f"sum({_of('pipeline_budget_usd_per_hour')})", legend="budgets"),
                        Query(expr=gauge("fleet_spend_usd_per_hour", by=INSTALLATION), legend="{{job}}: all spend"),
                        Query(
                            expr=gauge("fleet_budget_usd_per_hour", by=INSTALLATION),
                            legend="{{job}}: fleet budget",
                            empty_because="there is no budget for the fleet without --fleet-budget",
                        ),
                    ),
                ),
                Panel(
                    title="ComputeBudgets",
                    question="What share of each ComputeBudget do its pipelines spend together? At 100 % they give "
                    "way by priority.",
                    unit="percentunit",
                    queries=(
                        Query(
                            expr=f"{_budget('spend_usd_per_hour')} / {_budget('limit_usd_per_hour')}",
                            legend="{{budget}}: spent",
                            empty_because="there is no ComputeBudget",
                        ),
                        Query(
                            expr=f"{_budget('planned_usd_per_hour')} / {_budget('limit_usd_per_hour')}",
                            legend="{{budget}}: planned",
                            empty_because="there is no ComputeBudget",
                        ),
                    ),
                ),
                Panel(
                    title="Pipelines short of money",
                    question="How many pipelines are served in part because of their ComputeBudget?",
                    queries=(
                        Query(
                            expr=_budget("short_pipelines"),
                            legend="{{budget}}",
                            empty_because="there is no ComputeBudget",
                        ),
                    ),
                ),
                Panel(
                    title="Budget in use",
                    question="Which pipelines are closest to their budget, or above it?",
                    unit="percentunit",
                    link=LINK,
                    queries=(
                        Query(
                            expr=f"topk({_MOST}, {_of('pipeline_spend_usd_per_hour')}"
                            f" / {_of('pipeline_budget_usd_per_hour')})",
                            legend=_NAME,
                        ),
                    ),
                ),
                Panel(
                    title="Spend by pool",
                    question="On which pools is the money spent? Shares of instances count in parts.",
                    unit="currencyUSD",
                    stacked=True,
                    queries=(
                        Query(
                            expr=f"{_pool('pool_instances')} * {_pool('pool_price_usd_per_hour')}",
                            legend="{{pool}}",
                        ),
                    ),
                ),
                Panel(
                    title="Most expensive pipelines",
                    question="Which pipelines cost most per hour?",
                    unit="currencyUSD",
                    link=LINK,
                    queries=(Query(expr=f"topk({_MOST}, {_of('pipeline_spend_usd_per_hour')})", legend=_NAME),),
                ),
            ),
        ),
        Row(
            title="Health",
            panels=(
                Panel(
                    title="Pipelines by health",
                    question="How many pipelines are well, and what is the most severe problem of the others?",
                    stacked=True,
                    queries=(
                        Query(
                            expr=f"sum by (health) ({_of('pipeline_health', f'{PIPELINE}, health')})",
                            legend="{{health}}",
                        ),
                    ),
                ),
                Panel(
                    title="Pipelines in trouble",
                    question="Which pipelines need attention now, and why?",
                    kind=Kind.TABLE,
                    queries=(
                        Query(
                            expr=gauge(
                                "pipeline_health",
                                by=f"{PIPELINE}, health",
                                where=f'{_HERE}, health!~"OK|Scaling|Paused|Idle"',
                            ),
                            empty_because="no pipeline is in trouble",
                        ),
                    ),
                ),
                Panel(
                    title="Pipelines that are short",
                    question="Which pipelines cannot be served in full, and which limit prevents it: their budget, a "
                    "pool, the bounds of a stage, or the SLA itself?",
                    kind=Kind.TABLE,
                    queries=(
                        Query(
                            expr=_of("pipeline_limited", f"{PIPELINE}, limited_by"),
                            empty_because="every pipeline can be served in full",
                        ),
                    ),
                ),
                Panel(
                    title="Held changes by reason",
                    question="How many pipelines hold a change back, and why?",
                    stacked=True,
                    queries=(
                        Query(
                            expr=f"count by (reason) ({_of('pipeline_hold', f'{PIPELINE}, reason')})",
                            legend="{{reason}}",
                            empty_because="no change is held back",
                        ),
                    ),
                ),
                Panel(
                    title="Latency against SLA",
                    question="Which pipelines are closest to their SLA, or miss it? 100 % is the SLA.",
                    unit="percentunit",
                    link=LINK,
                    queries=(
                        Query(
                            expr=f"topk({_MOST}, {_of('pipeline_latency_seconds')} / {_of('pipeline_sla_seconds')})",
                            legend=_NAME,
                        ),
                    ),
                ),
                Panel(
                    title="Error budget burn",
                    question="Which pipelines use their error budget fastest? 1 is the rate at which it lasts: "
                    f"latency above the SLA in {1 - OBJECTIVE:.0%} of the time.",
                    link=LINK,
                    queries=(Query(expr=f"topk({_MOST}, {burn_rate('1h', where=_HERE)})", legend=_NAME),),
                ),
                Panel(
                    title="Served share",
                    question="Which pipelines have the smallest share of the demand that can be served within the SLA?",
                    unit="percentunit",
                    most=1,
                    link=LINK,
                    queries=(Query(expr=f"bottomk({_MOST}, {_of('pipeline_served_ratio')})", legend=_NAME),),
                ),
                Panel(
                    title="Demand not observed",
                    question="For which pipelines are the metrics of the demand missing, and for how long?",
                    unit="s",
                    link=LINK,
                    queries=(Query(expr=f"topk({_MOST}, {_of('demand_unseen_seconds')})", legend=_NAME),),
                ),
            ),
        ),
        Row(
            title="Work that can wait",
            panels=(
                Panel(
                    title="Time to spare before the deadline",
                    question="Which backlogs are done just before their deadline, or after it? Below 0 they are late.",
                    unit="s",
                    link=LINK,
                    queries=(
                        Query(
                            expr=f"bottomk({_MOST}, {_of('pipeline_backlog_deadline_seconds')}"
                            f" - {_of('pipeline_backlog_finish_seconds')})",
                            legend=_NAME,
                            empty_because="no pipeline has a backlog",
                        ),
                    ),
                ),
                Panel(
                    title="Items left",
                    question="How much work is left, and does it become less?",
                    link=LINK,
                    queries=(
                        Query(
                            expr=f"topk({_MOST}, {_of('pipeline_backlog_items')})",
                            legend=_NAME,
                            empty_because="no pipeline has a backlog",
                        ),
                    ),
                ),
                Panel(
                    title="Pace",
                    question="How many items per second do the planned replicas do, and how many meet the deadline?",
                    queries=(
                        Query(
                            expr=f"topk({_MOST}, {_of('pipeline_backlog_planned_per_second')})",
                            legend=f"{_NAME}: planned",
                            empty_because="no pipeline has a backlog",
                        ),
                        Query(
                            expr=f"topk({_MOST}, {_of('pipeline_backlog_required_per_second')})",
                            legend=f"{_NAME}: required",
                            empty_because="no pipeline has a backlog",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            title="Pools",
            panels=(
                Panel(
                    title="Instances in use",
                    question="Which pools are close to their limit?",
                    unit="percentunit",
                    queries=(
                        Query(
                            expr=f"{_pool('pool_instances')} / {_pool('pool_limit')}",
                            legend="{{pool}}",
                        ),
                    ),
                ),
                Panel(
                    title="Replicas that wait for a node",
                    question="On which pools do replicas wait for a node?",
                    queries=(
                        Query(
                            expr=gauge("pool_replicas", by="pool", where='state="pending"'),
                            legend="{{pool}}",
                        ),
                    ),
                ),
                Panel(
                    title="Pools that cannot deliver",
                    question="Which pools do plans avoid, because replicas got no node there?",
                    kind=Kind.STATES,
                    most=1,
                    limits=((1, "red"),),
                    queries=(Query(expr=_pool("pool_unavailable"), legend="{{pool}}"),),
                ),
            ),
        ),
    ),
)
"""The dashboard."""
