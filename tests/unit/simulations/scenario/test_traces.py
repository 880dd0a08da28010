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
        ("", r"mine\.csv:1: '': the first column must be 't_s'"),
        ("time,arrivals\n0,1\n", r"mine\.csv:1: 'time,arrivals': the first column must be 't_s'"),
        ("t_s,streams\n0,1\n", r"mine\.csv:1: 't_s,streams': has no column 'arrivals'"),
        ("t_s,arrivals\n0,1\n1,x\n", r"mine\.csv:3: arrivals: x: must be a number of at least 0"),
        ("t_s,arrivals\n0,1\n1,\n", r"mine\.csv:3: arrivals: : must be a number"),
        ("t_s,arrivals\n0,1\n1,nan\n", r"mine\.csv:3: arrivals: nan: must be a number"),
        ("t_s,arrivals\n0,1\n1,-2\n", r"mine\.csv:3: arrivals: -2: must be a number of at least 0"),
        ("t_s,arrivals\n0,1\n1,2.5\n", r"mine\.csv:3: arrivals: 2\.5: must be a whole number"),
        ("t_s,arrivals\n0,1\n1,2\n3,1\n", r"mine\.csv:4: t_s: 3: rows must be evenly spaced"),
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
