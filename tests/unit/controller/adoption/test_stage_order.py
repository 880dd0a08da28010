from controller.adoption.stage_order import in_order, pass_ratios, sources_of

CALLS = {("vad", "asr"): "vad names Service asr", ("asr", "notes"): "asr names Service notes"}


def names(*arguments: object) -> list[str]:
    return [placed.name for placed in in_order(*arguments)]  # type: ignore[arg-type]


def test_calls_decide_the_order() -> None:
    placed = in_order(["asr", "notes", "vad"], CALLS, {})
    assert [each.name for each in placed] == ["vad", "asr", "notes"]
    assert [each.because for each in placed[1:]] == ["vad names Service asr", "asr names Service notes"]
    assert all(each.after is None for each in placed)


def test_branches_that_join_are_written_as_after() -> None:
    calls = {("vad", "asr"): "", ("vad", "diar"): "", ("asr", "notes"): "", ("diar", "notes"): ""}
    placed = in_order(["asr", "diar", "notes", "vad"], calls, {})
    sources = sources_of(placed)
    assert sources["vad"] == ()
    assert set(sources["notes"]) == {"asr", "diar"}
    assert sources["asr"] == sources["diar"] == ("vad",)


def test_a_circle_of_calls_is_not_followed() -> None:
    calls = {**CALLS, ("notes", "vad"): "back"}
    placed = in_order(["asr", "notes", "vad"], calls, {})
    assert [each.name for each in placed] == ["vad", "asr", "notes"]
    assert "form a circle" in placed[0].because


def test_without_calls_usual_names_decide_before_rates() -> None:
    rates = {"decoder": 30.0, "vad": 10.0, "encoder": 20.0}
    placed = in_order(["decoder", "encoder", "vad"], {}, rates)
    assert [each.name for each in placed] == ["vad", "encoder", "decoder"]
    assert placed[0].because.startswith("guess: in the usual order of such names")


def test_without_usual_names_rates_decide() -> None:
    assert names(["blue", "red"], {}, {"blue": 3.0, "red": 7.0}) == ["red", "blue"]


def test_without_any_evidence_the_order_is_to_do() -> None:
    placed = in_order(["red", "blue"], {}, {"blue": 3.0})
    assert [each.name for each in placed] == ["blue", "red"]
    assert placed[0].because.startswith("TODO: ")


def test_a_stage_that_nothing_calls_is_put_last_and_marked() -> None:
    placed = in_order(["asr", "billing", "vad"], {("vad", "asr"): ""}, {})
    assert [each.name for each in placed] == ["vad", "asr", "billing"]
    assert placed[-1].because.startswith("TODO: ")


def test_pass_ratios_are_the_rates_of_the_next_stage_over_their_own() -> None:
    placed = in_order(["vad", "asr", "notes"], CALLS, {})
    assert pass_ratios(placed, {"vad": 100.0, "asr": 40.0, "notes": 20.0}) == {"vad": 0.4, "asr": 0.5}
    assert pass_ratios(placed, {"vad": 100.0, "asr": 40.0}) == {"vad": 0.4}
    assert pass_ratios(placed, {"vad": 0.0, "asr": 0.0}) == {}


def test_in_a_pipeline_with_a_join_no_ratio_is_suggested() -> None:
    calls = {("vad", "asr"): "", ("vad", "diar"): "", ("asr", "notes"): "", ("diar", "notes"): ""}
    placed = in_order(["asr", "diar", "notes", "vad"], calls, {})
    assert pass_ratios(placed, {"vad": 100.0, "asr": 40.0, "diar": 40.0, "notes": 40.0}) == {}
