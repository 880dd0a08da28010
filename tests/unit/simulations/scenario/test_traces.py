"""Reading traces."""

import gzip
from pathlib import Path

import pytest

from simulations.scenario import traces
from simulations.scenario.traces import Column, InvalidTrace, bundled_names, parse_trace, read_trace


@pytest.mark.parametrize(
    ("name", "bin_s", "events"),
    [
        ("azure_llm_2023_conv_1s.csv.gz", 1, 19_366),
        ("azure_llm_2023_code_1s.csv.gz", 1, 8_819),
        ("mooncake_conversation_3s.csv.gz", 3, 12_031),
        ("mooncake_synthetic_1s.csv.gz", 1, 3_993),
    ],
)
def test_bundled_traces_are_read_by_name_from_anywhere(tmp_path: Path, name: str, bin_s: float, events: int) -> None:
    trace = read_trace(name, Column.ARRIVALS, folder=tmp_path)

    assert trace.bin_s == bin_s
    assert trace.values.sum() == events
    assert name in bundled_names()


def test_a_file_beside_the_scenario_wins_over_a_bundled_trace_of_its_name(tmp_path: Path) -> None:
    name = "mooncake_synthetic_1s.csv.gz"
    (tmp_path / name).write_bytes(gzip.compress(b"t_s,streams\n0,5\n10,7\n"))

    trace = read_trace(name, Column.STREAMS, folder=tmp_path)

    assert trace.values.tolist() == [5, 7]
    assert trace.span_s == 20


def test_plain_csv_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("t_s, rate_per_s ,note\n0,0.5,x\n\n60,1.25,y\n")

    assert read_trace("mine.csv", Column.RATE_PER_S, folder=tmp_path).values.tolist() == [0.5, 1.25]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"mine\.csv: has no rows$"),
        ("seconds,arrivals\n0,1\n", r"mine\.csv:1: 'seconds,arrivals': the first column must be the time"),
        ("t_s\n0\n", r"mine\.csv:1: 't_s': has no column of values"),
        ("t_s,streams\n0,1\n1,1\n", r"mine\.csv: has no column 'arrivals', but 'streams'"),
        ("t_s,arrivals\n0,1\n1,x\n", r"mine\.csv:3: arrivals: x: must be a number of at least 0"),
        ("t_s,arrivals\n0,1\n1,\n", r"mine\.csv:3: arrivals: : must be a whole number"),
        ("t_s,arrivals\n0,1\n1,nan\n", r"mine\.csv:3: arrivals: nan: must be a whole number"),
        ("t_s,arrivals\n0,1\n1,-2\n", r"mine\.csv:3: arrivals: -2: must be a number of at least 0"),
        ("t_s,arrivals\n0,1\n1,2.5\n", r"mine\.csv:3: arrivals: 2\.5: must be a whole number"),
        ("t_s,arrivals\n0,1\n1,2\n3,1\n", r"mine\.csv:4: arrivals: 1: arrivals must be evenly spaced, every 1 s"),
        ("t_s,arrivals\n0,1\n0,2\n", r"mine\.csv:3: t_s: 0: must be later than the row before"),
        ("t_s,arrivals\n0,1,5\n", r"mine\.csv:2: 3 fields; the header has 2"),
        ("t_s,arrivals\n0,1\n", r"mine\.csv: 1 rows; must be at least 2"),
        (f"t_s,arrivals\n0,{'1' * 200_000}\n", r"mine\.csv:2: not CSV: field larger"),
    ],
)
def test_a_mistake_is_named_with_its_line_column_value_and_rule(text: str, message: str) -> None:
    with pytest.raises(InvalidTrace, match=message):
        parse_trace(text, Column.ARRIVALS, name="mine.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"t_s,arrivals\n0,1\n", "not a gzip file"),
        (gzip.compress(b"t_s,arrivals\n0,1\n1,1\n")[:-12], "not a gzip file"),
        (gzip.compress(b"\xff\xfe"), "not UTF-8"),
    ],
    ids=["no gzip", "cut short", "no text"],  # the same in every worker
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "mine.csv.gz").write_bytes(content)

    with pytest.raises(InvalidTrace, match=message):
        read_trace("mine.csv.gz", Column.ARRIVALS, folder=tmp_path)


def test_a_file_that_unpacks_to_more_than_a_recording_can_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_BYTES", 2**20)
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"0" * (2**20 + 1)))

    with pytest.raises(InvalidTrace, match="must be at most 1 MiB, unpacked"):
        read_trace("bomb.csv.gz", Column.ARRIVALS, folder=tmp_path)


def test_the_mark_that_spreadsheets_put_first_is_no_part_of_the_header(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("t_s,arrivals\n0,1\n1,2\n", encoding="utf-8-sig")

    assert read_trace("mine.csv", Column.ARRIVALS, folder=tmp_path).values.tolist() == [1, 2]


def test_a_trace_that_is_nowhere_is_refused_with_the_names_of_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match=r"no such file or bundled trace \(the bundled ones are azure"):
        read_trace("nowhere.csv", Column.ARRIVALS, folder=tmp_path)


GRAFANA = (
    '"Time","encoder","decoder"\n2026-11-01 00:00:00,34.2,1\n2026-11-01 00:01:00,35,\n2026-11-01 00:02:00,40,NaN\n'
    "2026-11-01 00:03:00,30,4\n"
)
MIDNIGHT_S = 1793491200.0


def test_an_export_of_grafana_gives_the_series_that_is_named_and_the_time_it_begins() -> None:
    trace = parse_trace(GRAFANA, Column.STREAMS, name="g.csv", series="encoder")

    assert (trace.bin_s, trace.values.tolist()) == (60, [34.2, 35, 40, 30])
    assert (trace.begins_s, trace.notes) == (MIDNIGHT_S, ())


def test_missing_values_are_interpolated_with_a_note_and_never_read_as_zero() -> None:
    trace = parse_trace(GRAFANA, Column.RATE_PER_S, name="g.csv", series="decoder")

    assert trace.values.tolist() == [1, 2, 3, 4]
    assert trace.notes == ("2 of 4 values are missing, up to 180 s without one: interpolated between their neighbours",)


def test_missing_rows_are_missing_values_and_the_ends_are_held() -> None:
    trace = parse_trace("time,a\n0,null\n10,2\n20,4\n50,10\n60,\n", Column.STREAMS, name="g.csv")

    assert trace.values.tolist() == [2, 2, 4, 6, 8, 10, 10]
    assert trace.notes == ("4 of 7 values are missing, up to 30 s without one: interpolated between their neighbours",)


@pytest.mark.parametrize(
    "times",
    [
        ("2026-11-01T00:00:00Z", "2026-11-01T00:01:00Z"),
        ("2026-11-01T01:00:00+01:00", "2026-11-01T01:01:00+01:00"),
        ("2026-11-01 00:00:00.000", "2026-11-01 00:01:00.000"),
        ("1793491200", "1793491260"),
        ("1793491200000", "1793491260000"),
        ("1.7934912e12", "1.79349126e12"),
    ],
)
@pytest.mark.parametrize("shape", ["Time,x\n{},1\n{},2\n", "sep=,\ntimestamp,x\n{},1\n{},2\n", "Time;x\n{};1\n{};2\n"])
def test_dates_seconds_and_milliseconds_are_understood(times: tuple[str, str], shape: str) -> None:
    trace = parse_trace(shape.format(*times), Column.STREAMS, name="g.csv")

    assert (trace.bin_s, trace.begins_s, trace.values.tolist()) == (60, MIDNIGHT_S, [1, 2])


def test_uneven_times_become_even_with_the_same_load_in_total() -> None:
    trace = parse_trace("t_s,rate_per_s\n0,0\n10,10\n14,10\n24,0\n34,0\n", Column.RATE_PER_S, name="g.csv")

    assert trace.bin_s == 10
    assert trace.values.tolist() == pytest.approx([5, 8.2, 0.8, 0])
    assert trace.values.sum() * 10 == pytest.approx(50 + 40 + 50)  # the area under the line
    assert trace.notes == (
        "the times are uneven, 4 s to 10 s apart: read every 10 s, as means of the line between two values",
    )


MATRIX = (
    '[{"metric":{"__name__":"open","job":"encoder"},"values":[[1793491200,"3"],[1793491260,"NaN"],[1793491320,"5"]]},'
    '{"metric":{"__name__":"open","job":"decoder"},"values":[[1793491260,"7"],[1793491320,"8"]]}]'
)
ANSWERS = [
    MATRIX,
    f'{{"status":"success","data":{{"resultType":"matrix","result":{MATRIX}}}}}',
    (
        'open{job="encoder"} =>\n3 @[1793491200]\nNaN @[1793491260]\n5 @[1793491320]\n'
        'open{job="decoder"} =>\n7 @[1793491260]\n8 @[1793491320]\n'
    ),
]


@pytest.mark.parametrize("text", ANSWERS, ids=["promtool -o json", "API", "promtool"])
def test_answers_of_range_queries_are_read_and_all_series_begin_together(text: str) -> None:
    encoder = parse_trace(text, Column.STREAMS, name="a.json", series='open{job="encoder"}')
    decoder = parse_trace(text, Column.STREAMS, name="a.json", series="decoder")

    assert (encoder.begins_s, encoder.bin_s, encoder.values.tolist()) == (MIDNIGHT_S, 60, [3, 4, 5])
    assert (decoder.begins_s, decoder.values.tolist()) == (MIDNIGHT_S, [7, 7, 8])


@pytest.mark.parametrize(
    ("text", "series", "message"),
    [
        (
            GRAFANA,
            None,
            r"g:1: has no column 'streams', but 2 series; name one \(`series`, or --series\): encoder, decoder$",
        ),
        (GRAFANA, "encodr", r"g:1: series 'encodr': no such series; did you mean encoder\?"),
        (GRAFANA, "x", r"g:1: series 'x': no such series; there are encoder, decoder$"),
        ("Time,a\nnow,1\n", None, r"g:2: Time: now: must be a time: seconds or milliseconds since 1970, or such as"),
        (
            "Time,a\n0,1\n2026-11-01,1\n",
            None,
            r"g:3: Time: 2026-11-01: must be a number of at least 0, as in the first",
        ),
        ("Time,a\n0,1\n60,12 req/s\n", None, r"g:3: a: 12 req/s: must be a number of at least 0, without a unit"),
        ("Time,a\n0,inf\n60,1\n", None, r"g:2: a: inf: must be a number"),
        ("Time,a\n0,\n60,\n", None, "g: a: has no number, only gaps"),
        ("Time,a\n0,1\n1,1\n2,1\n1e10,1\n", None, r"g: a: 10,000,000,000 s at 1 s: must be at most 5000000 bins"),
        (
            '[{"metric":{"a":"1"},"values":[[1,"2"],[2,"-1"]]}]',
            None,
            r"g: series\[0\]\.values\[1\]: -1: must be a number",
        ),
        (
            '[{"metric":{"a":"1"},"values":[[1,"2"],[1,"1"]]}]',
            None,
            r"values\[1\]: 1: must be later than the row before",
        ),
        ('[{"metric":{"a":"1"},"value":[1,"2"]}]', None, r"g: series\[0\]: must have metric and values"),
        ('[{"metric":{"a":"1"},"values":[[1,"2"],[2]]}]', None, r"series\[0\]\.values\[1\]: must be a pair"),
        ('{"status":"error","error":"parse error"}', None, "g: Prometheus answered with an error: parse error"),
        (
            '{"status":"success","data":{"resultType":"vector","result":[]}}',
            None,
            "vector: must be matrix, the answer of a",
        ),
        ("[]", None, "g: has no series: the query matched none"),
        ('[{"metric":\n {', None, r"g:2: not JSON: .* in column 3"),
        ("[" * 100_000, None, r"g: not the JSON of a range query"),
        ("{} =>\n3 @[1]\nfour\n", None, r"g:3: four: must be VALUE @\[TIME\]"),
    ],
)
def test_a_broken_export_is_one_line_with_place_and_rule(text: str, series: str | None, message: str) -> None:
    with pytest.raises(InvalidTrace, match=message) as caught:
        parse_trace(text, Column.STREAMS, name="g", series=series)
    assert "\n" not in str(caught.value)
