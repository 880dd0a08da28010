"""The measured difference between the simulator and the live lab: the error bar of every simulated number."""

import json
from dataclasses import dataclass
from importlib.resources import files

from simulations.report import formats

_FILE = "fidelity.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityError:
    """The relative error |simulated / live − 1| of a quantity: its mean, and its 90th percentile (None if unknown)."""

    quantity: str
    mean: float
    nine_of_ten: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """The errors found when simulated runs were compared with live runs, and the command that repeats this."""

    command: str
    scenarios: tuple[str, ...]
    seeds: int
    errors: tuple[QuantityError, ...]


def measured_fidelity() -> Fidelity | None:
    """Return the errors measured for this version; None if there is no file of them.

    Raises:
        ValueError: the file is no valid JSON or lacks a field.
    """
    file = files("simulations.report") / _FILE
    return parse(file.read_text()) if file.is_file() else None


def parse(text: str) -> Fidelity:
    """Return the errors in `text`, the content of the file.

    Raises:
        ValueError: the text is no valid JSON or lacks a field.
    """
    try:
        document = json.loads(text)
        return Fidelity(
            command=document["command"],
            scenarios=tuple(document["scenarios"]),
            seeds=document["seeds"],
            errors=tuple(
                QuantityError(quantity=e["quantity"], mean=e["mean"], nine_of_ten=e.get("nine_of_ten"))
                for e in document["errors"]
            ),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{_FILE}: must have command, scenarios, seeds and errors: {error!r}") from error


def words(fidelity: Fidelity | None) -> str:
    """Return a sentence about the errors; with None, that they were not measured."""
    if fidelity is None:
        return "The difference between simulated numbers and those of a live cluster was not measured for this version."
    errors = formats.listed([_error_words(error) for error in fidelity.errors])
    runs = f"{formats.plural(len(fidelity.scenarios), 'scenario')} × {formats.plural(fidelity.seeds, 'seed')}"
    scenarios = formats.listed(list(fidelity.scenarios))
    return f"Against live runs of {runs} ({scenarios}), the simulator's relative errors are: {errors}."


def _error_words(error: QuantityError) -> str:
    tail = (
        "" if error.nine_of_ten is None else f" (within {formats.share(error.nine_of_ten)} in nine of ten comparisons)"
    )
    return f"{error.quantity} {formats.share(error.mean)} on average{tail}"
