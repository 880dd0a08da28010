"""The terms of the report with their meanings."""

from controller.html import Markup, element

_WORDS = {
    "user": "An open stream or a request, as the demand of the pipeline has it. Streams are their mean number; ten "
    "streams of which one chunk in ten is late count as one late stream.",
    "served as promised": "Answered within the latency of the SLA. Green if the share reaches the SLA's percentile.",
    "item": "The unit of work of a pipeline: a chunk of audio of an open stream, or a request.",
    "SLA": "Service level: the given percentage of the items is answered within the given latency.",
    "window": "A stretch of time for which the SLA is checked. It is met when the SLA's percentage of the items "
    "offered in it and not filtered were answered in time: late, lost, refused and shed items all miss it. A window "
    "with fewer than 20 such items is not scored.",
    "p95": "95 % of the accepted items took at most this long. Lost items count as infinitely late.",
    "filtered": "Ended on purpose: voice activity detection found silence.",
    "late": "Answered after the SLA's latency.",
    "shed": "Not admitted by the ingress, because the load exceeds what can be served within the SLA.",
    "refused": "Not sent, because its stream found no slot. The stream tries again, after 1 to 30 s. Where users are "
    "counted, those that were shed are among the refused.",
    "lost": "Accepted, then refused by a full queue or not answered within ten times the SLA, retries included.",
    "month": "730 hours of the same load.",
    "session cut": "A stream whose replica was removed. It continued on another replica, with empty state.",
    "cost": "Price of the scheduled replicas, those that start or drain included. A replica costs its share of an "
    "instance.",
    "spend": "Counts against the budget: the larger of the desired and the existing replicas, at the price of the "
    "moment.",
    "bound": "Lower bound on the cost of any schedule that respects budget, capacity and start-up times and meets the "
    "SLA in at least 99.5 % of the windows. Such a schedule may know load and faults in advance; a policy does not.",
    "dominated": "Another policy costs no more, meets the SLA in as many windows and for as many items, "
    "and is better in one of these.",
    "seed": "Number of a random load of the same kind. A value is the mean over the seeds, with the lowest and the "
    "highest.",
    "trained": "With the best settings that a search found on other, training loads. Default: the documented settings.",
}


def glossary() -> Markup:
    """Return the list of terms with their meanings as HTML."""
    return element(
        "dl",
        [Markup.of(element("dt", word), element("dd", meaning)) for word, meaning in _WORDS.items()],
        class_="words",
    )
