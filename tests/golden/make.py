"""Record the golden set, or tell how plans differ from it: see README.md."""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_decisions
import golden_files
import golden_plans
import golden_recording
import golden_simulations
from golden_problems import questions

from controller.core.record import decision_record

LIVE = "live-"
"""How the names of records from the lab begin."""
_KEPT = 20
"""Records of each log of the lab."""


def record_plans(logs: list[Path]) -> None:
    """Record what the random questions are answered."""
    answers = {question.name: golden_plans.answer(question) for question in questions()}
    _tell(golden_plans.NAME, len(answers), answers)


def record_decisions(logs: list[Path]) -> None:
    """Record what is decided in the simulator and on the lab.

    `logs` are those of the operator, as `sluice lab run` leaves them; without any the live snapshots recorded before
    are decided anew.
    """
    records: dict[str, Any] = {}
    texts: dict[str, dict[str, str]] = {}
    for cycles in (golden_recording.simulated(), golden_recording.large_fleet()):
        for name, snapshot, decision in cycles:
            made = golden_decisions.record_of(decision_record(snapshot, decision), decision)
            records[name], texts[name] = made
    live = (
        dict(_live(logs)) if logs else {k: r for k, r in golden_decisions.load_records().items() if k.startswith(LIVE)}
    )
    for name, record in live.items():
        answer, texts[name] = golden_decisions.answer_now(record)
        records[name] = {**{part: record[part] for part in ("schema", "policy", "snapshot")}, "decision": answer}
    _tell(golden_decisions.NAME, len(records), records)
    _tell(golden_decisions.TEXTS, len(texts), texts)


def record_texts(logs: list[Path]) -> None:
    """Record the words of the decisions anew and tell how many have changed; the decisions stay as they are."""
    before = golden_decisions.load_texts()
    now = {name: golden_decisions.answer_now(record)[1] for name, record in golden_decisions.load_records().items()}
    changed = sum(before[name].get(path) != text for name, texts in now.items() for path, text in texts.items())
    print(f"{changed} of {sum(map(len, now.values()))} texts have changed")
    _tell(golden_decisions.TEXTS, len(now), now)


def record_simulations(logs: list[Path]) -> None:
    """Record what the simulations of the scenarios come to."""
    documents = {}
    for name in golden_simulations.SCENARIOS:
        began_s = time.perf_counter()
        documents[name] = golden_simulations.simulated(name)
        print(f"{name}: {len(documents[name]['runs'])} runs, {time.perf_counter() - began_s:.0f} s", flush=True)
        _tell(golden_simulations.NAME, len(documents), documents)


def compare_plans(logs: list[Path]) -> None:
    """Print for every plan that differs how, and the worst of each measure."""
    expected = golden_files.read(golden_plans.NAME)
    actual = {question.name: golden_files.plain(golden_plans.answer(question)) for question in questions()}
    rows = list(golden_plans.compared(expected, actual))
    print(f"{'plan':<24} {'feasible':<16} {'cost %':>9} {'served points':>14}")
    for name, feasible, cost, served in rows:
        if feasible != "same" or cost or served:
            print(f"{name:<24} {feasible:<16} {cost:>+9.4f} {served:>+14.4f}")
    same = sum(expected[name] == actual.get(name) for name in expected)
    print(f"{len(expected)} answers, {same} the same to the bit; {len(rows)} plans compared")
    print(
        f"feasibility differs: {sum(row[1] != 'same' for row in rows)}; "
        f"most cost added: {max(row[2] for row in rows):+.4f} %; "
        f"least served share: {min(row[3] for row in rows):+.4f} points"
    )


def _live(logs: list[Path]) -> Iterator[tuple[str, Any]]:
    """Yield decision records of the operator's logs, spread over each; those that are not decided alike again fail."""
    for log in logs:
        lines = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
        found = [line["record"] for line in lines if isinstance(line.get("record"), dict)]
        step = max(1.0, len(found) / _KEPT)
        for number in range(min(_KEPT, len(found))):
            record = found[int(number * step)]
            answer, _ = golden_decisions.answer_now(record)
            recorded, _ = golden_decisions.without_words(record["decision"])
            name = f"{LIVE}{log.name.partition('.')[0]}-{number}"
            difference = golden_files.told(name, recorded, {k: v for k, v in answer.items() if k != "more"})
            assert not difference, difference
            yield name, record


def _tell(name: str, count: int, content: object) -> None:
    path = golden_files.write(name, content)
    print(f"{path.name}: {count} entries, {path.stat().st_size / 1e6:.2f} MB")


_PARTS = {
    "plans": record_plans,
    "decisions": record_decisions,
    "texts": record_texts,
    "simulations": record_simulations,
    "compare": compare_plans,
}


def main() -> None:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=_PARTS)
    parser.add_argument("logs", nargs="*", type=Path, help="decisions: the operator's logs of runs on the lab")
    asked = parser.parse_args()
    began_s = time.perf_counter()
    _PARTS[asked.part](asked.logs)
    print(f"{time.perf_counter() - began_s:.0f} s")


if __name__ == "__main__":
    main()
