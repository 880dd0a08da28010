"""What a plan costs with other service times."""

from corpus import CONTRACT

from controller.commands.plan_request import ask, specs_of
from controller.resources.validation import validate_files
from optimizer.allocate import allocate
from optimizer.reports.sensitivity import service_time_sensitivity


def test_each_stage_is_varied_alone_and_in_both_directions() -> None:
    specs, pools = specs_of(validate_files(CONTRACT[:2]))
    problem = ask(specs, pools, demands=("speech/live-captions=400",), limits=()).problem
    cost = allocate(problem).cost_per_hour
    found = list(service_time_sensitivity(problem))
    assert [one.stage for one in found] == ["vad", "encoder", "decoder", "lm"]
    assert {(one.pipeline, one.share) for one in found} == {("speech/live-captions", 0.5)}
    for one in found:
        assert one.shorter.cost_per_hour <= cost <= one.longer.cost_per_hour
        assert one.shorter.cost_per_hour < one.longer.cost_per_hour
