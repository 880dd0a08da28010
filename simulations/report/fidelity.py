"""How far the simulator is from the live lab, as measured: the error bar of every simulated number."""

import json
from dataclasses import dataclass
from importlib.resources import files

from simulations.report import formats

_FILE = "fidelity.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityError:
    """Simulated over live − 1, without its sign: on average, and what nine of ten comparisons stay within."""

    quantity: str
    mean: float
    nine_of_ten: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """What a comparison of simulated with live runs found, and the command that repeats it."""

    command: str
    scenarios: tuple[str, ...]
    seeds: int
    errors: tuple[QuantityError, ...]


def measured_fidelity() -> Fidelity | None:
    """Return what was measured for this version; None when nothing was.

    Raises:
        ValueError: the file is there and does not say what it should.
    """
    file = files("simulations.report") / _FILE
    return parse(file.read_text()) if file.is_file() else None


def parse(text: str) -> Fidelity:
    """Return what the text of the file says."""
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
    """Return the error bar as a sentence."""
    if fidelity is None:
        return "How far simulated numbers are from those of a live cluster was not measured for this version."
    told = formats.listed([_error_words(error) for error in fidelity.errors])
    runs = f"{formats.plural(len(fidelity.scenarios), 'scenario')} × {formats.plural(fidelity.seeds, 'seed')}"
    return (
        f"Against live runs of {runs} ({formats.listed(list(fidelity.scenarios))}), the simulator was off by: {told}."
    )


def _error_words(error: QuantityError) -> str:
    tail = "" if error.nine_of_ten is None else f" (within {formats.share(error.nine_of_ten)} in nine of ten cases)"
    return f"{error.quantity} {formats.share(error.mean)} on average{tail}"
