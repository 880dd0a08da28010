"""The dashboard Pool: capacity, pending replicas, failures and prices of the pools."""

from controller.monitoring.grafana import Dashboard, Kind, Panel, Query, Row, Variable
from controller.monitoring.promql import PIPELINE, gauge, series

_HERE = 'pool=~"$pool"'
_PLACED = 'pool=~"$pool(:.+)?"'
"""A variant of a model on the pool is `POOL:VARIANT` in the series of placements."""
_POOL = "{{pool}}"


def _of(name: str, by: str = "pool") -> str:
    return gauge(name, by=by, where=_HERE)


def _replicas(state: str) -> str:
    return gauge("pool_replicas", by="pool", where=f'{_HERE}, state="{state}"')


_USERS = gauge("stage_replicas_ready", by=f"{PIPELINE}, stage, pool", where=_PLACED)

POOL = Dashboard(
    uid="sluice-pool",
    title="Sluice / Pool",
    description="The compute pools: instances, replicas that wait or fail, prices, and who uses them.",
    variables=(Variable(name="pool", label="Pool", metric=series("pool_limit"), multi=True),),
    rows=(
        Row(
            title="Capacity",
            panels=(
                Panel(
                    title="Instances",
                    question="How many instances are in use, planned, ready, on their way and allowed?",
                    queries=(
                        Query(expr=_of("pool_instances"), legend="{{pool}}: in use"),
                        Query(expr=_of("pool_planned_instances"), legend="{{pool}}: planned"),
                        Query(expr=_of("pool_ready_instances"), legend="{{pool}}: ready"),
                        Query(
                            expr=_of("pool_arriving_nodes"),
                            legend="{{pool}}: on their way",
                            empty_because="no pool names a NodePool",
                        ),
                        Query(expr=_of("pool_limit"), legend="{{pool}}: limit"),
                    ),
                ),
                Panel(
                    title="Share in use",
                    question="How close is each pool to its limit?",
                    unit="percentunit",
                    queries=(Query(expr=f"{_of('pool_instances')} / {_of('pool_limit')}", legend=_POOL),),
                ),
                Panel(
                    title="Nodes that leave",
                    question="How many ready nodes are being removed, so that their replicas must move?",
                    queries=(Query(expr=_of("pool_leaving_instances"), legend=_POOL),),
                ),
                Panel(
                    title="Pipelines on the pool",
                    question="Which pipelines have ready replicas on the pool? Fleets without series of stages have "
                    "no data here.",
                    stacked=True,
                    queries=(
                        Query(
                            expr=f"sum by ({PIPELINE}) ({_USERS})",
                            legend="{{namespace}}/{{pipeline}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            title="Replicas that wait or fail",
            panels=(
                Panel(
                    title="Replicas by state",
                    question="How many replicas are ready, start, wait for a node, are on a node that is not ready, or "
                    "terminate?",
                    stacked=True,
                    queries=(Query(expr=_of("pool_replicas", "pool, state"), legend="{{pool}}: {{state}}"),),
                ),
                Panel(
                    title="Replicas without a usable node",
                    question="How many replicas wait for a node, or are on one that is not ready?",
                    queries=(
                        Query(expr=_replicas("pending"), legend="{{pool}}: pending"),
                        Query(expr=_replicas("stranded"), legend="{{pool}}: node not ready"),
                    ),
                ),
                Panel(
                    title="Pool cannot deliver",
                    question="When did plans avoid the pool, because replicas got no node there?",
                    kind=Kind.STATES,
                    most=1,
                    limits=((1, "red"),),
                    queries=(Query(expr=_of("pool_unavailable"), legend=_POOL),),
                ),
                Panel(
                    title="Placements that fail",
                    question="How many placements fail although the pool delivers to others: no node takes the pod "
                    "(Fragmented), or its replicas do not become ready (CannotStart)?",
                    queries=(Query(expr=_of("pool_failing_placements", "pool, cause"), legend="{{pool}}: {{cause}}"),),
                ),
            ),
        ),
        Row(
            title="Prices",
            panels=(
                Panel(
                    title="Price of an instance",
                    question="What does an instance cost per hour, and did the price change?",
                    unit="currencyUSD",
                    queries=(Query(expr=_of("pool_price_usd_per_hour"), legend=_POOL),),
                ),
                Panel(
                    title="Spend",
                    question="What do the replicas on the pool cost per hour? Shares of instances count in parts.",
                    unit="currencyUSD",
                    stacked=True,
                    queries=(Query(expr=f"{_of('pool_instances')} * {_of('pool_price_usd_per_hour')}", legend=_POOL),),
                ),
                Panel(
                    title="Spot prices of the last day",
                    question="How far did the spot prices of the pool's types and zones spread in the last day?",
                    unit="currencyUSD",
                    queries=(
                        Query(
                            expr=_of("pool_price_day_usd_per_hour", "pool, bound"),
                            legend="{{pool}}: {{bound}}",
                            empty_because="no pool has a spot price",
                        ),
                    ),
                ),
                Panel(
                    title="Quota",
                    question="How many instances does the quota of the AWS account allow?",
                    queries=(
                        Query(
                            expr=_of("pool_quota_instances", "pool, code"),
                            legend="{{pool}}: {{code}}",
                            empty_because="no pool has a quota that is known",
                        ),
                    ),
                ),
                Panel(
                    title="Shadow price",
                    question="How much would one more instance of the pool save per hour? 0: the limit costs nothing.",
                    unit="currencyUSD",
                    queries=(Query(expr=_of("pool_shadow_price_usd_per_hour"), legend=_POOL),),
                ),
            ),
        ),
    ),
)
"""The dashboard."""
