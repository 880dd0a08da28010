"""A made-up result of a backtest."""

from optimizer.model import PipelineKey
from simulations.backtest.comparison import Comparison, Measures

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
