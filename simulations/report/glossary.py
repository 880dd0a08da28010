"""The words of the report, for somebody who meets them for the first time."""

from simulations.report.html import Markup, element

_WORDS = {
    "item": "What a pipeline works on: a chunk of audio of an open stream, or a request.",
    "SLA": "The promise: so many percent of the items are answered within so much time.",
    "window": "The promise is checked window by window; a window without enough items is not scored.",
    "p95": "95 % of the items took at most this long. Lost items count as infinitely late.",
    "filtered": "Ended on purpose: voice activity detection heard silence.",
    "shed": "Turned away at the entry, because more could not be served in time.",
    "lost": "Refused by a full queue, or without an answer for ten times the SLA, retries included.",
    "session cut": "A stream whose replica went away: it continued on another one, with empty state.",
    "cost": "What the scheduled replicas cost, those that start or drain included. A replica pays for its share of an "
    "instance.",
    "spend": "What counts against the budget at a moment: the larger of what is asked for and what exists, at the "
    "price of that moment.",
    "bound": "The least that any schedule could cost that knows load and faults in advance, respects budget, capacity "
    "and start-up times, and meets the SLA in at least 99.5 % of the windows. Without foresight nobody reaches it.",
    "dominated": "Another policy costs no more, meets the SLA in as many windows and for as many items, "
    "and is better in one of these.",
    "seed": "A random load of the same kind. A number is the mean over the seeds; lowest and highest are beside it.",
    "trained": "With the settings that a search found best on other loads than these. Default: as documented.",
}


def glossary() -> Markup:
    """Return the words with their meanings."""
    return element(
        "dl",
        [Markup.of(element("dt", word), element("dd", meaning)) for word, meaning in _WORDS.items()],
        class_="words",
    )
