"""A made-up result of a backtest."""

from dataclasses import replace

from experiments import some_users

from optimizer.model import PipelineKey
from simulations.backtest.comparison import Comparison, Measures, Served

RECORDED = Measures(cost=100.0, windows=600, sla_share=0.98, latency_s=0.2, unanswered=None)
RAN = Measures(cost=110.0, windows=620, sla_share=0.97, latency_s=0.21, unanswered=0.001)
SLUICE = Measures(cost=55.0, windows=620, sla_share=0.99, latency_s=0.22, unanswered=0.0)
ONE = Comparison(
    key=PipelineKey("speech/captions"),
    sla_s=0.25,
    percentile=95.0,
    recorded=RECORDED,
    recorded_simulated=RAN,
    sluice=SLUICE,
)
_USERS = some_users(streams=100.0)
SERVED = (
    Served(name="Sluice", users=(replace(_USERS, as_promised=96.0, refused=1.0, late=3.0, lost=0.0),), sessions_cut=7),
    Served(
        name="What ran (simulated)",
        users=(replace(_USERS, as_promised=90.0, refused=0.0, late=10.0, lost=0.0),),
        sessions_cut=0,
    ),
)
