"""The queries of the dashboards that are empty in a healthy run, against the metrics of a fleet in trouble.

`tests/e2e/test_dashboards.py` has the others.
"""

import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from backlogs import ITEM_S, a_backlog
from builders import ENCODER, ENCODER_GPU, NOW_S, VAD, a_placement, a_snapshot, a_spec, a_state, a_target
from dashboard_queries import Asked, queries
from prometheus_client.parser import text_string_to_metric_families

from controller.core.cycle import decide
from controller.core.state.carry_over import FailureCause, PipelineMemory, PlacementFailure, PoolMemory
from controller.core.state.cloud import PriceOrigin, PriceQuote, PriceRange, Purchase, QuotaReading, QuotaSource
from controller.core.state.policy import Policy
from controller.core.state.snapshot import BudgetState, NodePoolState, PoolState, TargetState
from controller.core.state.spec import BudgetSpec, LabelSelector
from controller.monitoring.pool_dashboard import POOL
from controller.monitoring.promql import CUT_SESSIONS
from controller.telemetry import Telemetry
from optimizer.model import PlacementKey, PoolName, StageName
from profiler.stages import Correction, Learned
from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab

EMPTY_WHEN_HEALTHY = [asked for asked in queries(namespace="speech", pipeline="captions") if asked.empty_because]


SESSIONS_CUT = f"""# TYPE {CUT_SESSIONS} counter
{CUT_SESSIONS}{{namespace="speech",pipeline="captions"}} 3
"""
"""What an ingress of the users exports that counts cut sessions."""


def in_trouble() -> str:
    """The metrics of a fleet whose pipeline has too small a budget, and a placement that does not start.

    The replicas of another are starting, sessions were cut, a pool has a spot price and a quota. Another pipeline has a
    backlog.
    """
    correction = Correction(factor=2.0, smoothed=2.0, learned_at_s=NOW_S)
    memory = PipelineMemory(
        learned=Learned(overhead_s=0.05, latency_corrections={StageName("encoder"): correction}),
        failures={
            ENCODER_GPU: PlacementFailure(
                cause=FailureCause.CANNOT_START,
                outage=PoolMemory(unavailable_until_s=NOW_S + 300, backoff_s=300.0, reason="CrashLoopBackOff"),
            )
        },
    )
    starting = a_target(2, ready=0, starting_since_s=(NOW_S, NOW_S))
    replicas: dict[PlacementKey, int | TargetState] = {VAD: starting, ENCODER: 1, ENCODER_GPU: 1}
    state = a_state(a_spec(budget=2.0), demand=500.0, replicas=replicas, memory=memory)
    team = BudgetSpec(name="team", uid="u", generation=1, selector=LabelSelector(labels={}), per_hour=1.5)
    budgets = (BudgetState(spec=team, namespaces=frozenset({"speech"})),)
    work = a_state(a_backlog(a_placement("cpu", service_s=ITEM_S), due_s=NOW_S + 3600.0), demand=3240.0, replicas={})
    snapshot = replace(a_snapshot(replace(state, latency_s=0.9), work), budgets=budgets)
    cpu, gpu = PoolName("cpu"), PoolName("gpu")
    elastic = replace(snapshot.pools[cpu], node_pool=NodePoolState(instances=9))
    snapshot = replace(snapshot, pools={**snapshot.pools, cpu: elastic, gpu: on_spot(snapshot.pools[gpu])})
    telemetry = Telemetry()
    telemetry.succeeded(snapshot, decide(snapshot, Policy(budget_per_hour=50.0)), 0.2, invalid=0)
    return telemetry.exposition().decode() + SESSIONS_CUT


def on_spot(pool: PoolState) -> PoolState:
    """Return the pool with a spot price that varied, and a quota."""
    day = PriceRange(low_per_hour=0.4, high_per_hour=0.9)
    price = PriceQuote(per_hour=0.5, origin=PriceOrigin.SPOT, as_of_s=NOW_S, day=day)
    quota = QuotaSource(code="L-3819A6DF", region="us-east-1", vcpus=4, purchase=Purchase.SPOT, name="G Spot")
    reading = QuotaReading(limit_vcpus=64.0, others_vcpus=0.0, as_of_s=NOW_S)
    return replace(pool, spec=replace(pool.spec, price=price, quota=quota), quota=reading)


def input_series(text: str) -> list[dict[str, str]]:
    """The samples of a scrape as constant series, with the labels that Prometheus gives to the scraped target."""
    target = {"job": "sluice", "instance": "10.0.0.9:8080", "pod": "sluice-0"}
    return [
        {"series": f"{sample.name}{labels(target | sample.labels)}", "values": f"{sample.value!r}x30"}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if math.isfinite(sample.value)
    ]


def labels(of: dict[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in of.items()) + "}"


def judged(binaries: Binaries, folder: Path, text: str, asked: Asked) -> "subprocess.CompletedProcess[str]":
    some = {"expr": f"count({asked.expr}) > bool 0", "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": 1}]}
    test = {"interval": "10s", "input_series": input_series(text), "promql_expr_test": [some]}
    path = folder / "queries.yaml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "10s", "tests": [test]}))
    return subprocess.run(
        [binaries.promtool, "test", "rules", path], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("asked", EMPTY_WHEN_HEALTHY, ids=str)
def test_what_is_empty_in_a_healthy_run_has_data_in_trouble(binaries: Binaries, tmp_path: Path, asked: Asked) -> None:
    result = judged(binaries, tmp_path, in_trouble(), asked)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_pipeline_with_a_variant_of_a_model_on_a_pool_is_one_of_those_on_the_pool(
    binaries: Binaries, tmp_path: Path
) -> None:
    (query,) = (query for query in POOL.queries if "stage_replicas_ready" in query.expr)
    series = 'sluice_stage_replicas_ready{{namespace="speech",pipeline="captions",pool="{}",stage="asr"}} 2\n'
    here = Asked(place="here", expr=query.expr.replace("$pool", "(cpu|gpu)"), empty_because="")
    for placement, on_pool in (("gpu", True), ("gpu:int8", True), ("gpus", False), ("a-gpu:int8", False)):
        result = judged(binaries, tmp_path, series.format(placement), here)
        assert (result.returncode == 0) is on_pool, (placement, result.stdout + result.stderr)


def test_it_would_notice_a_query_without_data(binaries: Binaries, tmp_path: Path) -> None:
    assert judged(binaries, tmp_path, "", EMPTY_WHEN_HEALTHY[0]).returncode != 0
