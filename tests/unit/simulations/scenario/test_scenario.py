"""Scenario files: what is accepted, and how mistakes are told."""

import math
import re
from pathlib import Path

import pytest
import yaml

from controller.resources.pool import ComputePool
from controller.resources.translate import pipeline_spec
from simulations.results.scoring import Clock, Interval
from simulations.scenario.scenario import (
    InvalidScenario,
    Scenario,
    load_scenario,
    of_stage,
    resource_changes,
    with_what_if,
)

CONTRACT = Path(__file__).parents[3] / "contract"
DEMO = Path(__file__).parents[4] / "simulations" / "scenarios" / "demo"
SCENARIO = """\
name: test
manifests: [pools.yaml, live-captions.yaml]
duration: 4m
load:
  - pipeline: speech/live-captions
    trace: azure_llm_2023_code_1s.csv.gz
    column: arrivals
    session: {mean: 60s, cv: "1.3"}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    for name in ("pools.yaml", "live-captions.yaml"):
        (tmp_path / name).write_text((CONTRACT / name).read_text())
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def findings(path: Path, text: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(InvalidScenario) as caught:
        load_scenario(path)
    assert all(finding.file == path for finding in caught.value.findings)
    return [str(finding).removeprefix(f"{path}:") for finding in caught.value.findings]


def test_the_bundled_scenario_is_valid() -> None:
    scenario = load_scenario(DEMO / "scenario.yaml")

    assert scenario.file.policies == ["sluice", "static-peak"]
    assert scenario.file.interval == "1s"


def test_the_scenario_of_the_contract_is_valid_as_it_stands() -> None:
    scenario = load_scenario(CONTRACT / "scenario.yaml")

    assert scenario.file.clock == Clock(duration_s=3000, warmup_s=120, window_s=10)
    assert [fault.kind for fault in scenario.file.faults] == ["poolUnavailable", "metricsLost", "set"]
    assert [what_if.name for what_if in scenario.file.what_if] == ["half-budget", "no-inferentia", "double-load"]
    assert [pipeline.metadata.name for pipeline in scenario.pipelines] == ["live-captions"]
    assert [pool.metadata.name for pool in scenario.pools] == ["cpu", "inferentia", "gpu"]
    assert all(path.is_file() for path in scenario.manifests)


def test_what_is_not_given_has_a_default(scenario: Path) -> None:
    file = load_scenario(scenario).file

    assert file.clock == Clock(duration_s=240, warmup_s=0, window_s=10)
    assert (file.seeds, file.policies, file.faults, file.what_if) == ([1], ["sluice"], [], [])
    assert (file.profile_error, file.hide_profiles, file.speed_spread, file.sheds) == (None, False, 0.0, True)
    assert (file.overhead, file.scrape_interval) == ("0s", "1s")
    session = file.load[0].session
    assert session is not None
    assert session.reconnect == "backoff"


def test_properties_of_a_run_are_read(scenario: Path) -> None:
    scenario.write_text(
        SCENARIO.replace('cv: "1.3"', 'cv: "1.3", reconnect: never')
        + 'profileError: {decoder: "0.2", speech/live-captions/vad: 3}\nhideProfiles: true\noverhead: 20ms\n'
        + 'speedSpread: "0.2"\nscrapeInterval: 30s\nsheds: false\n'
    )
    file = load_scenario(scenario).file

    assert file.profile_error == {"decoder": 0.2, "speech/live-captions/vad": 3.0}
    assert (file.hide_profiles, file.speed_spread, file.sheds) == (True, 0.2, False)
    assert (file.overhead, file.scrape_interval) == ("20ms", "30s")
    session = file.load[0].session
    assert session is not None
    assert session.reconnect == "never"


def test_streams_come_back_unless_the_sessions_of_their_load_say_never(scenario: Path) -> None:
    assert load_scenario(scenario).file.reconnects("speech/live-captions")

    scenario.write_text(SCENARIO.replace('cv: "1.3"', 'cv: "1.3", reconnect: never'))
    file = load_scenario(scenario).file
    assert not file.reconnects("speech/live-captions")
    assert file.reconnects("speech/another")


FAULTS = [
    ("poolUnavailable: inferentia", "poolUnavailable"),
    ("poolLost: gpu", "poolLost"),
    ('metricsLost: "*"', "metricsLost"),
    ("metricsStale: speech/live-captions", "metricsStale"),
    ('metricsPartial: {share: "0.5"}', "metricsPartial"),
    ('metricsNoisy: {cv: "0.3", pipeline: speech/live-captions}', "metricsNoisy"),
    ("spike: {pipeline: speech/live-captions, factor: 3}", "spike"),
    ('slowStart: {pool: gpu, factor: "2.5"}', "slowStart"),
    ("slowStage: {stage: decoder, factor: 2}", "slowStage"),
    ("slowStage: {stage: speech/live-captions/decoder, factor: 2}", "slowStage"),
    ("coldCaches: {stage: decoder, factor: 2, lasts: 30s}", "coldCaches"),
    ("stuckReplica: decoder", "stuckReplica"),
    ('passRatio: {stage: decoder, ratio: "0.5"}', "passRatio"),
    ("slowTransit: {pipeline: speech/live-captions, by: 200ms}", "slowTransit"),
    ('retries: {pipeline: speech/live-captions, factor: "1.5"}', "retries"),
    ('spotReclaim: {pool: gpu, share: "0.5"}', "spotReclaim"),
    ('set: {ComputePool/gpu: {spec: {price: {perHour: "1.6"}}}}', "set"),
    ("set: {SpeechPipeline/speech/live-captions: {spec: {sla: {maxWer: null}}}}", "set"),
]


@pytest.mark.parametrize(("fault", "kind"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_every_kind_of_fault_is_understood(scenario: Path, fault: str, kind: str) -> None:
    scenario.write_text(f"{SCENARIO}faults:\n  - {{at: 1m, for: 30s, {fault}}}\n")

    parsed = load_scenario(scenario).file.faults[0]

    assert parsed.kind == kind
    assert parsed.interval == Interval(from_s=60, until_s=90)


def test_a_patch_may_remove_a_field(scenario: Path) -> None:
    scenario.write_text(f"{SCENARIO}faults:\n  - {{at: 1m, {FAULTS[-1][0]}}}\n")

    assert load_scenario(scenario).file.faults[0].set_ == {
        "SpeechPipeline/speech/live-captions": {"spec": {"sla": {"maxWer": None}}}
    }


def test_a_roll_out_happens_at_once_and_ends_on_its_own(scenario: Path) -> None:
    scenario.write_text(f"{SCENARIO}faults:\n  - {{at: 1m, rollOut: decoder}}\n")
    (fault,) = load_scenario(scenario).file.faults
    assert (fault.kind, fault.roll_out, fault.interval) == ("rollOut", "decoder", Interval(from_s=60, until_s=60))

    scenario.write_text(f"{SCENARIO}faults:\n  - {{at: 1m, for: 30s, rollOut: decoder}}\n")
    with pytest.raises(InvalidScenario, match=r'faults\[0\].for: "30s": must be absent: a roll-out ends when'):
        load_scenario(scenario)


def test_a_stage_may_answer_in_several_tokens_and_have_further_models_beside_its_own(scenario: Path) -> None:
    manifest = scenario.parent / "live-captions.yaml"
    manifest.write_text(manifest.read_text().replace("preset: triton", "preset: vllm"))
    models = "otherModels: {speech/live-captions/decoder: [draft, guard]}"
    scenario.write_text(f'{SCENARIO}firstToken: {{decoder: "0.2"}}\n{models}\n')

    file = load_scenario(scenario).file
    assert of_stage(file.first_token, "speech/live-captions", "decoder", 1.0) == 0.2
    assert of_stage(file.first_token, "speech/live-captions", "encoder", 1.0) == 1.0
    assert of_stage(file.other_models, "speech/live-captions", "decoder", ()) == ("draft", "guard")
    assert of_stage(file.other_models, "speech/others", "decoder", ()) == ()


def test_a_fault_without_an_end_lasts_unless_it_happens_at_once(scenario: Path) -> None:
    lasting, at_once = FAULTS[0][0], FAULTS[-2][0]
    scenario.write_text(f"{SCENARIO}faults:\n  - {{at: 60s, {lasting}}}\n  - {{at: 60s, {at_once}}}\n")

    first, second = load_scenario(scenario).file.faults

    assert first.interval.until_s == math.inf
    assert second.interval.until_s == 60


MISTAKES = [
    ("duration: 4m", "durration: 4m", '3: durration: "4m": unknown field; did you mean duration?'),
    ("duration: 4m", "duration: 1d", '3: duration: "1d": must be a duration such as 160ms or 1m30s'),
    ("duration: 4m", "duration: 4m\nwarmup: 5m", '4: warmup: "5m": must be shorter than duration (4m)'),
    ("name: test", "name: ../test", '1: name: "../test": must be usable as a file name'),
    ("name: test", f"name: {'t' * 101}", "must be usable as a file name: at most 100 printable characters"),
    ("duration: 4m", "duration: 4m\nwindow: 1ms", '4: window: "1ms": must divide duration (4m) into at most 100000'),
    ("duration: 4m", "duration: 4m\nseeds: []", "4: seeds: []: must have at least 1 entries"),
    ("duration: 4m", "duration: 4m\nseeds: [1, 2, 1]", "4: seeds[2]: 1: must be unique; seeds[0] has the same value"),
    ("speech/live-captions", "captions", '5: load[0].pipeline: "captions": must name a pipeline as namespace/name'),
    (
        "speech/live-captions",
        "speech/live-caption",
        "no such pipeline in the manifests; did you mean speech/live-captions?",
    ),
    ("column: arrivals", "column: requests", '7: load[0].column: "requests": must be arrivals, streams or rate_per_s'),
    ("column: arrivals", "column: streams", "has no column 'streams'"),
    ("column: arrivals", "column: arrivals\n    copies: 0", "8: load[0].copies: 0: must be at least 1"),
    ("column: arrivals", "column: arrivals\n    copies: 10001", "8: load[0].copies: 10001: must be at most 10000"),
    ("column: arrivals", 'column: arrivals\n    speed: "1e400"', '8: load[0].speed: "1e400": must be at most 1000000'),
    ("column: arrivals", "column: arrivals\n    speed: 1.5", "8: load[0].speed: 1.5: must be a whole number or a dec"),
    ("column: arrivals", "column: arrivals\n    speed: 0", "8: load[0].speed: 0: must be above 0"),
    ("column: arrivals", "column: arrivals\n    offset: 2h", '8: load[0].offset: "2h": must be within the trace'),
    ("azure_llm_2023_code_1s.csv.gz", "no.csv", "no such file or bundled trace"),
    ('    session: {mean: 60s, cv: "1.3"}\n', "", "load[0].session: (absent): required: the pipeline takes Streams"),
    ("name: test", "name: test\nfaults: [{at: 1m}]", "2: faults[0]: "),
    ("name: test", "name: test\nfaults: [{at: 5m, poolLost: gpu}]", 'faults[0].at: "5m": must begin before the run'),
    ("name: test", "name: test\nfaults: [{at: 1m, poolLost: gpx}]", "no such pool in the manifests; did you mean gpu?"),
    ("name: test", "name: test\nfaults: [{at: 1m, metricsLost: all}]", 'must be "*" or name a pipeline'),
    ("name: test", "name: test\nfaults: [{at: 1m, metricsLost: a/b}]", "no such pipeline in the manifests"),
    ("name: test", "name: test\nfaults: [{at: 1m, rollOut: decodr}]", "no such stage in the manifests; did you mean"),
    ("name: test", "name: test\nfirstToken: {decodr: '0.2'}", "no such stage in the manifests; did you mean decoder?"),
    ("name: test", "name: test\nfirstToken: {decoder: '0'}", "decoder: must be above 0 and at most 1"),
    ("name: test", "name: test\nfirstToken: {decoder: '2'}", "decoder: must be above 0 and at most 1"),
    ("name: test", "name: test\nfirstToken: {}", "must map stages to shares of the service time"),
    ("name: test", "name: test\nfirstToken: {decoder: '0.2'}", "the stage must have metrics.preset vllm, not triton"),
    ("name: test", "name: test\ninterference: {decoder: '2'}", "decoder: must name two stages, such as encoder,lm"),
    ("name: test", "name: test\ninterference: {'decoder,encoder': '0.5'}", "decoder,encoder: must be at least 1"),
    ("name: test", "name: test\ninterference: {'decoder,encodr': '2'}", "no such stage in the manifests; did you mean"),
    ("name: test", "name: test\ninterference: {}", "must map pairs of stages to factors"),
    ("name: test", "name: test\notherModels: {vad: [a]}", "must have metrics.preset triton or vllm, not generic"),
    ("name: test", "name: test\notherModels: {decodr: [a]}", "no such stage in the manifests; did you mean decoder?"),
    ("name: test", "name: test\notherModels: {decoder: a}", "decoder: must be a list of names of models"),
    ("name: test", "name: test\notherModels: {decoder: [a, a]}", "decoder: must name each model once"),
    ("name: test", "name: test\notherModels: []", "must map stages to names of models"),
    (
        "name: test",
        "name: test\nfaults: [{at: 1m, slowStage: {stage: x, factor: 2}}]",
        "no such stage in the manifests",
    ),
    (
        "name: test",
        "name: test\nfaults: [{at: 1m, coldCaches: {stage: x, factor: 2, lasts: 1s}}]",
        "no such stage in the manifests",
    ),
    ("name: test", "name: test\nfaults: [{at: 1m, stuckReplica: x}]", "no such stage in the manifests"),
    ("name: test", "name: test\nfaults: [{at: 1m, passRatio: {stage: x, ratio: 1}}]", "no such stage in the manifests"),
    (
        "name: test",
        "name: test\nfaults: [{at: 1m, slowTransit: {pipeline: a/b, by: 1s}}]",
        "no such pipeline in the manifests",
    ),
    (
        "name: test",
        "name: test\nfaults: [{at: 1m, retries: {pipeline: a/b, factor: 2}}]",
        "no such pipeline in the manifests",
    ),
    (
        "name: test",
        "name: test\nfaults: [{at: 1m, retries: {pipeline: speech/live-captions, factor: 11}}]",
        "11: must be from 1 to 10",
    ),
    ("name: test", "name: test\nfaults: [{at: 1m, spotReclaim: {pool: gpu, share: 2}}]", "2: must be at most 1"),
    ("name: test", "name: test\nfaults: [{at: 1m, set: {gpu: {}}}]", "gpu: must be KIND/NAME or KIND/NAMESPACE/NAME"),
    ("name: test", "name: test\nfaults: [{at: 1m, set: {ComputePool/gpx: {}}}]", "did you mean ComputePool/gpu?"),
    ("name: test", "name: test\nwhatIf: [{name: a}]", "must have set or load; without them it changes nothing"),
    ("name: test", "name: test\nwhatIf: [{name: a, set: {ComputePool/x: {}}}]", "no such resource in the manifests"),
    (
        "name: test",
        "name: test\nwhatIf: [{name: a, load: {copies: 2}}, {name: a, load: {copies: 3}}]",
        "whatIf[1].name",
    ),
    (
        "name: test",
        "name: test\nfaults: [{at: 1m, set: {ComputePool/gpu: {spec: {price: {perHour: 1.6}}}}}]",
        "2: faults[0].set[ComputePool/gpu].spec.price.perHour: 1.6: must be a string: put it in quotes",
    ),
    (
        "name: test",
        "name: test\nfaults: [{at: 1m, set: {ComputePool/gpu: {spec: {prize: {perHour: '1.6'}}}}}]",
        'spec.prize: {"perHour": "1.6"}: unknown field; known fields:',
    ),
    (
        "name: test",
        "name: test\nwhatIf: [{name: a, set: {SpeechPipeline/speech/live-captions: {spec: {sla: null}}}}]",
        "whatIf[0].set[SpeechPipeline/speech/live-captions].spec.sla: null: required",
    ),
    (
        "name: test",
        "name: test\nwhatIf: [{name: a, load: {column: streams}}]",
        "2: whatIf[0].load.trace: (absent): ",
    ),
    (
        "name: test",
        "name: test\nfaults: [{at: 1m, poolLost: gpu}, {at: 2m, set: {ComputePool/gpu: {spec: {device: TPU}}}}]",
        '2: faults[1].set[ComputePool/gpu].spec.device: "TPU": must be CPU, Inferentia, Trainium or GPU',
    ),
    (
        "name: test",
        "name: test\nprofileError: {decodr: 2}",
        "2: profileError.decodr: 2: no such stage in the manifests; did you mean decoder?",
    ),
    ("name: test", 'name: test\nprofileError: {decoder: "0"}', "decoder: must be above 0"),
    (
        "name: test",
        "name: test\nprofileError: {decoder: 0.2}",
        'profileError: {"decoder": 0.2}: must be a whole number or a dec',
    ),
    ("name: test", "name: test\nprofileError: 2", "must map stages to factors, such as"),
    ("name: test", "name: test\nscrapeInterval: 0s", '2: scrapeInterval: "0s": '),
    ("name: test", "name: test\noverhead: much", '2: overhead: "much": must be a duration'),
    ("name: test", "name: test\nspeedSpread: 0.2", "2: speedSpread: 0.2: must be a whole number or a dec"),
    ("name: test", "name: test\nsheds: maybe", '2: sheds: "maybe": '),
    ('cv: "1.3"', 'cv: "1.3", reconnect: always', "load[0].session.reconnect: "),
    (
        "name: test",
        "name: test\npolicies: [sluice, sluice]",
        '2: policies[1]: "sluice": must be unique; policies[0] has the same value',
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES, ids=[message for _, _, message in MISTAKES])
def test_a_mistake_has_one_message_with_its_line_field_value_and_rule(
    scenario: Path, old: str, new: str, message: str
) -> None:
    found = findings(scenario, SCENARIO.replace(old, new))

    assert len(found) == 1, found
    assert message in found[0]


def test_the_streams_of_a_pipeline_reconnect_all_or_never(scenario: Path) -> None:
    entry = SCENARIO[SCENARIO.index("  - pipeline") :].replace('cv: "1.3"', 'cv: "1.3", reconnect: never')
    (found,) = findings(scenario, SCENARIO + entry)

    assert "load[1].session.reconnect" in found
    assert found.endswith("must be the same in every load entry of the pipeline")


def test_a_fault_of_two_kinds_is_refused_with_both_of_them(scenario: Path) -> None:
    found = findings(scenario, SCENARIO + 'faults: [{at: 1m, poolLost: gpu, metricsLost: "*"}]\n')

    assert len(found) == 1
    assert "must have exactly one of" in found[0]
    assert found[0].endswith("not poolLost and metricsLost")


def test_every_mistake_is_told_at_once(scenario: Path) -> None:
    text = SCENARIO.replace("duration: 4m", "duration: 4x").replace("60s", "sixty")

    assert [line.split(":")[0] for line in findings(scenario, text)] == ["3", "8"]


def test_mistakes_in_the_manifests_are_those_of_the_manifests(scenario: Path) -> None:
    manifest = scenario.parent / "pools.yaml"
    manifest.write_text(manifest.read_text().replace('"0.34"', "0.34"))

    with pytest.raises(InvalidScenario, match=r"pools\.yaml:9: spec\.price\.perHour"):
        load_scenario(scenario)


def test_a_file_that_is_no_yaml_or_not_there_is_one_message(scenario: Path) -> None:
    assert len(findings(scenario, "a: [")) == 1
    with pytest.raises(InvalidScenario, match="cannot be read"):
        load_scenario(scenario.parent / "missing.yaml")


def test_two_documents_are_no_scenario(scenario: Path) -> None:
    assert "must be one document, not 2" in findings(scenario, f"{SCENARIO}---\n{SCENARIO}")[0]


def test_policies_are_checked_against_those_there_are(scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("name: test", "name: test\npolicies: [sluice, keeda]"))

    with pytest.raises(InvalidScenario, match="no such policy; did you mean keda"):
        load_scenario(scenario, policies={"sluice", "keda"})
    assert load_scenario(scenario).file.policies == ["sluice", "keeda"]


def price(scenario: Scenario, pool: str) -> str:
    return next(p.spec.price.per_hour or "" for p in scenario.pools if p.metadata.name == pool)


def test_a_what_if_changes_only_what_it_says(scenario: Path) -> None:
    loaded = load_scenario(CONTRACT / "scenario.yaml")
    half, without, double = (with_what_if(loaded, loaded.what_if(w.name)) for w in loaded.file.what_if)

    assert [p.spec.budget.per_hour for p in (*loaded.pipelines, *half.pipelines)] == ["20", "10"]
    assert half.pools == loaded.pools
    assert half.file == loaded.file
    assert half.pipelines[0].spec.stages == loaded.pipelines[0].spec.stages
    instances = {p.metadata.name: p.spec.capacity.instances for p in without.pools}
    assert instances == {"cpu": 40, "inferentia": 0, "gpu": 10}
    assert without.pipelines == loaded.pipelines
    assert double.file.load[0].copies == 8
    assert double.file.load[0].session == loaded.file.load[0].session
    assert (double.pipelines, double.pools) == (loaded.pipelines, loaded.pools)
    assert with_what_if(loaded, None) is loaded


def test_patches_follow_each_other_and_are_undone_when_they_end(scenario: Path) -> None:
    patch = "{{at: {}, set: {{ComputePool/gpu: {{spec: {{price: {{perHour: '{}'}}}}}}}}}}"
    faults = f"[{patch.format('1m, for: 2m', '2')}, {patch.format('90s', '3')}]"
    scenario.write_text(f"{SCENARIO}faults: {faults}\n")

    changes = resource_changes(load_scenario(scenario))

    assert [change.at_s for change in changes] == [60, 90, 180]
    prices = [c.resource.spec.price.per_hour for c in changes if isinstance(c.resource, ComputePool)]
    assert prices == ["2", "3", "1.006"]


def test_a_what_if_that_does_not_go_with_a_fault_is_told(scenario: Path) -> None:
    name, spec = "SpeechPipeline/speech/live-captions", "demand: {{unit: Requests, chunk: {}}}"
    requests = f"{{name: requests, set: {{{name}: {{spec: {{{spec.format('null')}}}}}}}}}"
    fault = f"{{at: 1m, set: {{{name}: {{spec: {{demand: {{chunk: 320ms}}}}}}}}}}"
    scenario.write_text(f"{SCENARIO}faults: [{fault}]\nwhatIf: [{requests}]\n")

    with pytest.raises(InvalidScenario) as caught:
        load_scenario(scenario)
    assert [finding.field for finding in caught.value.findings] == ["whatIf[0].load.session", "whatIf[0]"]
    assert "conflicts with faults[0]" in str(caught.value)


def changed_pipeline(scenario: Path, before: str, after: str) -> list[str]:
    """Return the findings of the scenario with `before` in its pipeline replaced by `after`."""
    path = scenario.with_name("live-captions.yaml")
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))
    with pytest.raises(InvalidScenario) as caught:
        load_scenario(scenario)
    assert all(finding.file == path for finding in caught.value.findings)
    return [str(finding).partition(": ")[2] for finding in caught.value.findings]


def test_replicas_need_their_true_service_time(scenario: Path) -> None:
    lm_time = 'serviceTime: {fixed: 15ms, perItem: 2ms, cv: "0.5"}'
    (told,) = changed_pipeline(scenario, lm_time, "")
    assert told == (
        "spec.stages[3].placements[0].serviceTime: (absent): required in a scenario: it is the true service time of "
        "the replicas"
    )


def test_fan_out_is_not_simulated(scenario: Path) -> None:
    assert changed_pipeline(scenario, 'passRatio: "0.45"', 'passRatio: "3"') == [
        'spec.stages[0].passRatio: "3": must be at most 1 in a scenario: fan-out is planned for, but not simulated'
    ]


def test_a_stage_of_several_pipelines_is_not_simulated(scenario: Path) -> None:
    path = scenario.with_name("live-captions.yaml")
    first = path.read_text()
    second = yaml.safe_load(first)
    second["metadata"]["name"] = "notes"
    second["spec"]["stages"] = [{"name": "own", "sharedFrom": {"pipeline": "live-captions", "stage": "vad"}}]
    path.write_text(f"{first}\n---\n{yaml.safe_dump(second)}")
    with pytest.raises(InvalidScenario) as caught:
        load_scenario(scenario)
    (told,) = [finding for finding in caught.value.findings if finding.field == "spec.stages[0].sharedFrom"]
    assert told.rule == (
        "not possible in a scenario: a stage that several pipelines share is planned for, but not simulated"
    )


def test_a_patch_that_takes_the_service_time_away_is_refused_where_it_is(scenario: Path) -> None:
    stage = (
        "{name: vad, passRatio: '2', placements: [{pool: cpu, replicas: {max: 1},"
        " target: {apiVersion: apps/v1, kind: Deployment, name: vad}}]}"
    )
    fault = f"set: {{SpeechPipeline/speech/live-captions: {{spec: {{stages: [{stage}]}}}}}}"
    found = findings(scenario, f"{SCENARIO}faults:\n  - {{at: 1m, {fault}}}\n")
    at = "faults[0].set[SpeechPipeline/speech/live-captions].spec.stages[0]"
    assert [line.partition(": ")[2].split(": ")[0] for line in found] == [
        f"{at}.passRatio",
        f"{at}.placements[0].serviceTime",
    ]


def test_a_start_up_time_that_is_not_declared_is_assumed(scenario: Path) -> None:
    path = scenario.with_name("live-captions.yaml")
    path.write_text(re.sub(r"\n *startup: .*", "", path.read_text()))
    (pipeline,) = load_scenario(scenario).pipelines
    assert {placement.startup_s for placement in pipeline_spec(pipeline).placements().values()} == {60.0}


def test_the_launch_of_a_node_is_between_two_times(scenario: Path) -> None:
    assert load_scenario(scenario).file.node_startup.range_s == (60, 180)
    scenario.write_text(f"{SCENARIO}nodeStartup: {{min: 2m, max: 90s}}\n")
    with pytest.raises(InvalidScenario, match=r"nodeStartup\.max: \"90s\": must be at least min \(2m\)"):
        load_scenario(scenario)


def test_a_pool_whose_price_only_aws_knows_needs_a_declared_one(scenario: Path) -> None:
    pools = scenario.with_name("pools.yaml")
    aws = "{aws: {instanceType: inf2.xlarge, region: eu-west-1}}"
    pools.write_text(pools.read_text().replace('{perHour: "0.7582"}', aws))
    with pytest.raises(InvalidScenario) as error:
        load_scenario(scenario)
    (finding,) = error.value.findings
    assert (finding.file, finding.field) == (pools, "spec.price.aws")
    assert finding.rule.startswith("must have price.perHour beside it")
