"""`docs/metrics.md` has the tables of the present presets, and its exporters in Python give `generic` all it needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from document_blocks import blocks
from metrics_document import DOCUMENT, MEANINGS, exported, renewed, snippets

from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import PlacementTarget, Quantity
from profiler.sources.base import ReadRequest
from profiler.sources.exposition import samples
from profiler.sources.history import TargetHistory
from profiler.sources.presets import LoadedPresets, PresetFiles, load_presets
from profiler.sources.promql_evaluation import Evaluation
from profiler.sources.promql_syntax import metric_names, parse
from profiler.sources.queries import query_plan

PRESETS = load_presets()
BEFORE = """
import json, socket, time
from urllib.request import ProxyHandler, build_opener

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]

def scrape():
    return build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
"""
AFTER = """
texts.append(scrape())
print(json.dumps(texts))
"""
WITH_PROMETHEUS_CLIENT = """
begin(concurrency=2, port=port)
texts = [scrape()]
for _ in range(30):
    for _ in range(4):
        arrived()
    begun(4)
    served([0.05, 0.05, 0.09, 0.09], service_s=0.02)
arrived()
"""
WITH_INSTRUMENT = """
now_s = 100.0
stage.clock = lambda: now_s
stage.capacity = 2
begin(port=port)
texts = [scrape()]
for _ in range(30):
    arrivals = []
    for wait_s in (0.07, 0.07, 0.03, 0.03):  # before the 20 ms of service
        now_s = 100.1 - wait_s
        arrivals.append(received())
    now_s = 100.1

    def compute():
        global now_s
        now_s += 0.02

    serve(arrivals, compute)
received()
"""
APART_S = 10.0


def test_the_tables_are_those_of_the_presets() -> None:
    text = DOCUMENT.read_text()
    assert renewed(text) == text, "run `make docs`"


def test_every_metric_of_the_contract_has_a_meaning() -> None:
    assert set(exported(PRESETS["generic"])) == set(MEANINGS)


@pytest.mark.parametrize(("place", "use"), list(enumerate((WITH_INSTRUMENT, WITH_PROMETHEUS_CLIENT))))
def test_the_exporters_in_python_give_the_preset_all_that_it_needs(place: int, use: str) -> None:
    code = snippets("python")[place] + BEFORE + use + AFTER
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    target = PlacementTarget(
        pipeline=PipelineKey("speech/captions"),
        stage=StageName("asr"),
        placement=PoolName("cpu"),
        namespace="speech",
        pods=frozenset({"asr-0"}),
        preset="generic",
        window_s=60.0,
        concurrency=2,
        batch_limit=4,
        overrides={},
    )
    plan = query_plan(ReadRequest(placements=(target,), scalars={}, deadline_s=1.0), LoadedPresets(usable=PRESETS))
    queries = {query: parse(query) for query in plan.pod_queries()}
    names = frozenset[str]().union(*map(metric_names, queries))
    history = TargetHistory({"namespace": "speech", "pod": "asr-0"})
    for index, text in enumerate(json.loads(done.stdout)):
        history.record(index * APART_S, samples(text, names), keep_s=300.0)
    evaluation = Evaluation([history], at_s=APART_S, lookback_s=300.0)
    results = {query: evaluation.result(expression) for query, expression in queries.items()}
    (found,) = plan.answer(results, {}, {}).placements.values()
    readings = {quantity: found.of(quantity) for quantity in Quantity}
    assert readings[Quantity.SERVICE_TIME] == pytest.approx(0.02)
    assert readings[Quantity.BATCH_SIZE] == 4.0
    assert readings[Quantity.LATENCY_P95] == pytest.approx(0.098)  # interpolated in the bucket from 80 to 100 ms
    for quantity in (Quantity.ARRIVAL_RATE, Quantity.COMPLETION_RATE, Quantity.LATENCY_MEAN, Quantity.UTILIZATION):
        assert isinstance(readings[quantity], float)
    assert readings[Quantity.QUEUE_DEPTH] == 0.5  # mean over the window: 0, then 1


def test_the_preset_of_a_user_in_the_document_is_valid(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(DOCUMENT, DOCUMENT.read_text()) if block.language == "toml")
    (tmp_path / "whisper.toml").write_text(block.text)
    loaded = PresetFiles(tmp_path).load()
    assert loaded.problems == {}
    assert "whisper" in loaded.usable
