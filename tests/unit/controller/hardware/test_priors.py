"""Published numbers come with their source, or they are not in the table."""

import re

import pytest
from problems import a_pipeline, a_stage, on

from controller.aws.price_table import PRICES_PER_HOUR
from controller.hardware.priors import known_priors, models, parse, with_priors
from optimizer.model import InvalidProblem, StageName

ENTRY = """
[[prior]]
model = "m"
device = "d"
kind = "GPU"
item = "a second of audio"
points = { 1 = 0.1, 4 = 0.2 }
cv = 0.2
source = "https://example.org/numbers"
method = "measured"
confidence = "Low"
error = 0.3
"""


def test_every_number_has_a_source_a_method_and_an_error() -> None:
    priors = known_priors()
    assert priors
    for prior in priors:
        assert re.match(r"https://|docs/how-to/hardware\.md#", prior.source), prior
        assert prior.method
        assert prior.item
        assert 0 < prior.error < 1
        assert prior.instance_type is None or prior.instance_type in PRICES_PER_HOUR


@pytest.mark.parametrize("field", ["source", "method", "item", "points", "error"])
def test_a_number_without_what_it_needs_is_refused(field: str) -> None:
    text = re.sub(rf"^{field} = .*$", "", ENTRY, flags=re.MULTILINE)
    with pytest.raises(InvalidProblem, match=rf"^prior\[0\]\.{field}: None: required"):
        parse(text)


def test_other_mistakes_name_the_entry_and_the_rule() -> None:
    with pytest.raises(InvalidProblem, match=r"prior\[0\]\.confidence: 'Sure': must be one of Low, Medium, High"):
        parse(ENTRY.replace('"Low"', '"Sure"'))
    with pytest.raises(InvalidProblem, match=r"prior\[0\]\.points: .*larger batch must not take less"):
        parse(ENTRY.replace("4 = 0.2", "4 = 0.05"))


def test_devices_with_a_price_are_added_to_a_stage_and_others_are_left_out() -> None:
    pipeline = a_pipeline(a_stage("asr", on("gpu")), a_stage("lm", on("gpu"), after=["asr"]))
    (prior,) = parse(ENTRY)
    same, pools, added = with_priors(pipeline, StageName("asr"), [prior], {})
    assert (same, pools, added) == (pipeline, {}, {})
    wider, pools, added = with_priors(pipeline, StageName("asr"), [prior], {"d": 3.5})
    (asr, lm) = wider.stages
    assert lm == pipeline.stages[1]
    assert asr.placements[-1].name in added
    assert asr.placements[-1].service.mean_s(4) == 0.2
    assert pools[prior.pool].price_per_hour == 3.5


def test_the_models_are_listed_once() -> None:
    assert len(set(models(known_priors()))) == len(models(known_priors()))
