"""Texts of a diagnosis: each cause with its evidence, what would help, and what that costs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controller.core.messages.phrases import (
    count_of,
    demand_words,
    duration,
    first_names,
    limit_words,
    money,
    number,
    share_words,
)
from controller.core.state.decision import PipelineDecision
from controller.core.state.diagnosis import Because, Cause, Finding
from controller.core.state.spec import Mode

_FAILS = ("BackOff", "Error")
"""How the reasons end with which a kubelet says that a container does not start."""

SECTION = "Why the SLA is missed"
"""The title of the section about the diagnosis, in the readiness report and in the report of a run."""

TITLES: Mapping[Cause, str] = {
    Cause.DEMAND: "demand is above what was planned",
    Cause.POOL: "a pool does not deliver",
    Cause.COLD_START: "replicas start slowly",
    Cause.SLOWER_STAGE: "a stage is slower than it was",
    Cause.PASS_RATIO: "more items than before go on to the next stage",
    Cause.UNEVEN_SESSIONS: "sessions are unevenly spread",
    Cause.QUEUEING: "items wait before a stage",
    Cause.DATA_PLANE: "time or items are lost between the stages",
    Cause.MEMORY_GROWTH: "sessions outgrow the memory of a replica",
    Cause.QUALITY_DROP: "a cheaper variant makes more errors",
    Cause.METRICS: "the metrics cannot be believed",
}
"""What each cause is, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseWords:
    """A cause for people: a title, the evidence a sentence each, and what would help."""

    title: str
    evidence: tuple[str, ...]
    remedy: str


def cause_words(finding: Finding, decision: PipelineDecision) -> CauseWords:
    """Return the texts of a finding of `decision`."""
    where = "" if finding.stage is None else f"{finding.stage}: "
    return CauseWords(
        title=where + TITLES[finding.cause],
        evidence=(*_evidence(finding, decision), *_since(finding)),
        remedy=_remedy(finding, decision),
    )


def cause_titles(decision: PipelineDecision) -> Iterator[str]:
    """Yield the causes of a missed SLA as one clause, without the evidence; nothing where none is known."""
    titles = dict.fromkeys((each.stage, TITLES[each.cause]) for each in decision.diagnosis)
    if said := ", ".join(f"{stage}: {title}" if stage else title for stage, title in titles):
        yield f"cause: {said}"


def briefly(decision: PipelineDecision) -> str:
    """Return the diagnosis in one line: the causes, the most certain first, with the first sentence of evidence."""
    said = []
    for finding in decision.diagnosis:
        words = cause_words(finding, decision)
        first = f" ({words.evidence[0]})" if words.evidence else ""
        said.append(f"{words.title}{first}, {certain_words(finding.confidence)}")
    return "; ".join(said)


def diagnosis_lines(decision: PipelineDecision) -> Iterator[str]:
    """Yield the lines about why the SLA is missed: each cause, its evidence, what would help, and what that costs."""
    for finding in decision.diagnosis:
        words = cause_words(finding, decision)
        yield f"{words.title} ({finding.cause.value}), {certain_words(finding.confidence)}"
        yield from (f"  {each}" for each in words.evidence)
        yield f"  would help: {words.remedy}{cost_words(finding.cost_per_hour)}"


def certain_words(confidence: float) -> str:
    """Return a confidence (0–1) as text, such as `98% certain`."""
    return f"{confidence:.0%} certain"


def cost_words(per_hour: float | None) -> str:
    """Return what a remedy costs in USD per hour as the end of a sentence, empty where that is not known."""
    if per_hour is None:
        return ""
    return "; costs nothing" if per_hour <= 0 else f"; costs {money(per_hour)} more"


def _since(finding: Finding) -> Iterator[str]:
    """Yield how long the evidence is gone, where it is: queues last longer than their cause."""
    if "ago_s" in finding.numbers:
        yield f"so it was until {duration(finding.numbers['ago_s'])} ago"


def _evidence(finding: Finding, decision: PipelineDecision) -> Iterator[str]:
    of, names, spec = finding.numbers, finding.names, decision.spec
    match finding.cause:
        case Cause.DEMAND:
            rose = f"from {demand_words(spec, of['before'])} to {demand_words(spec, of['now'])}"
            yield f"demand rose {rose} within 10 minutes"
            yield f"the ready replicas of {finding.stage} are enough for {demand_words(spec, of['ready_for'])}"
        case Cause.POOL:
            yield from _pool_evidence(finding)
        case Cause.COLD_START:
            starting = count_of(int(of["starting"]), "replica")
            expected = f"planned are {duration(of['expected_s'])}"
            yield f"{starting} starting on {finding.placement} for {duration(of['for_s'])}; {expected}"
            if finding.because is Because.FROM_ZERO:
                yield "no replica of the stage is ready"
            yield from (f"it says: {words}" for words in names)
        case Cause.SLOWER_STAGE:
            yield from _slower_evidence(finding)
        case Cause.PASS_RATIO:
            yield f"{share_words(of['now'])} of the items go on, {share_words(of['before'])} while all was well"
        case Cause.UNEVEN_SESSIONS:
            fair = number(of["sessions"] / of["replicas"])
            yield f"{names[0]} holds {number(of['most'])} of {number(of['sessions'])} sessions; its share is {fair}"
            yield f"it is loaded to {of['utilization']:.0%} by them"
        case Cause.QUEUEING:
            yield from _queueing_evidence(finding, decision)
        case Cause.DATA_PLANE:
            yield from _data_plane_evidence(finding, decision)
        case Cause.MEMORY_GROWTH:
            ended = count_of(int(of["ended"]), "replica")
            yield f"{ended} of {finding.placement} ended because of memory: {first_names(names)}"
            slots = count_of(int(of["slots"]), "slot")
            held = f", and the fullest holds {number(of['most'])} sessions" if of["most"] else ""
            yield f"a replica has {slots}{held}: the sessions became too large"
        case Cause.QUALITY_DROP:
            audio = f"audio of slice {names[0]}" if names[0] else "all audio"
            yield f"{finding.stage} went from {names[1]} to {names[2]} {duration(of['since_s'])} ago"
            yield f"of {audio} {share_words(of['now'])} of the words are wrong; {share_words(of['before'])} before"
        case Cause.METRICS:
            yield from _metrics_evidence(finding)


def _pool_evidence(finding: Finding) -> Iterator[str]:
    of, names = finding.numbers, finding.names
    if finding.because is Because.LIMIT:
        yield f"{names[0]} has room for {of['served']:.0%} of the demand"
    elif "waits_s" in of:
        waiting = count_of(int(of["waiting"]), "replica")
        yield f"{waiting} without a node on {finding.placement}, the first for {duration(of['waits_s'])}"
        yield from (f"the scheduler says: {words}" for words in names)
    else:
        yield f"{finding.placement} is left out: {': '.join(names)}"


def _slower_evidence(finding: Finding) -> Iterator[str]:
    of = finding.numbers
    if "now_s" in of:
        than = "declared" if finding.because is Because.DECLARED else "while all was well"
        batch = f"batches of {number(of['batch'])} on {finding.placement}"
        yield f"{batch} take {duration(of['now_s'])}; {duration(of['before_s'])} {than}: {number(of['times'])} ×"
    match finding.because:
        case Because.CPU_QUOTA:
            yield f"the CPU quota stops the worst replica in {share_words(of['throttled'])} of its periods"
        case Because.NEIGHBOURS:
            beside = finding.names[0].rpartition("/")[2] if finding.names else "others"
            yield f"of that, {number(of['by_neighbours'])} × because {beside} on the same instances is busy"
        case Because.NEW_VERSION:
            yield f"its replicas are of revision {finding.names[1]}; {finding.names[0]} while all was well"
        case Because.COLD_CACHES:
            yield f"{share_words(of['warming'])} of its replicas are in their first minutes, with cold caches"


def _queueing_evidence(finding: Finding, decision: PipelineDecision) -> Iterator[str]:
    of = finding.numbers
    waits = f"{number(of['waiting'])} items wait before {finding.stage}"
    yield f"{waits}, for {duration(of['waits_s'])} each" if "waits_s" in of else f"{waits}, and none is completed"
    match finding.because:
        case Because.STUCK_REPLICA:
            if "stuck" in of:
                stuck = f"{first_names(finding.names)} {'completes' if of['stuck'] == 1 else 'complete'} nothing"
                yield f"{stuck}, while {number(of['before_them'])} items wait there and other replicas work"
            else:
                ready = count_of(int(of["ready"]), "replica")
                named = f": {first_names(finding.names)}" if finding.names else ""
                yield f"{ready} {'is' if of['ready'] == 1 else 'are'} ready{named}"
        case Because.OTHER_TENANT:
            yield f"other pipelines brought {number(of['others_before'])} items/s, now {number(of['others_now'])}"
        case Because.BATCH_WAIT:
            busy = f"the replicas are busy for {of['utilization']:.0%} of the time"
            yield f"{busy}, and a batch waits up to {duration(of['batch_wait_s'])} for more items"
        case Because.LAG | Because.LIMIT:
            if "load" in of:
                yield f"the demand loads the ready replicas to {of['load']:.0%}"
            if finding.because is Because.LIMIT and decision.plan is not None:
                served = f"{decision.plan.served_fraction:.0%} of the demand"
                yield f"no more replicas are allowed: {finding.names[0]} leaves room for {served}"


def _data_plane_evidence(finding: Finding, decision: PipelineDecision) -> Iterator[str]:
    of = finding.numbers
    match finding.because:
        case Because.OVERHEAD:
            percentile = f"p{decision.spec.sla.percentile:g}"
            outside = f"{duration(of['now_s'])} of {percentile} are outside the stages"
            yield f"{outside}; {duration(of['before_s'])} while all was well"
        case Because.NETWORK:
            if of["pressure"] > 0:
                yield f"the receive pressure of the worst pod is {of['pressure']:.0%}"
            if of["lost_per_s"] > 0:
                yield f"its node loses {number(of['lost_per_s'])} packets/s on reception"
        case Because.REFUSED:
            yield f"{number(of['per_s'])} sessions/s find no free slot"
        case Because.RETRIES:
            yield f"{number(of['arrives'])} items/s arrive, and the demand is {number(of['offered'])} items/s"


def _metrics_evidence(finding: Finding) -> Iterator[str]:
    of = finding.numbers
    match finding.because:
        case Because.LOST:
            yield f"the demand has been unknown for {duration(of['for_s'])}"
        case Because.MISSING:
            yield f"no {finding.names[0]} of {finding.placement}: {finding.names[1]}"
            yield f"{finding.stage} is planned with what was last known, and nothing is removed there"
        case Because.CONTRADICTED:
            yield f"for {duration(of['for_s'])}, more has arrived than the demand query says"
        case Because.IMPLAUSIBLE:
            yield f"the measured {finding.names[0]} is {number(of['times'])} × what the model says"


def _remedy(finding: Finding, decision: PipelineDecision) -> str:
    stage, placement = finding.stage, finding.placement
    match finding.cause, finding.because:
        case (Cause.DEMAND, _) | (Cause.QUEUEING, Because.LAG) if decision.spec.mode is not Mode.AUTO:
            return "the recommended replicas set by hand, or mode: Auto"
        case Cause.DEMAND, _:
            binding = None if decision.plan is None or decision.starting else decision.plan.limited_by
            if binding is not None:
                return f"a higher limit than {limit_words(binding, decision.spec.budget_per_hour)}"
            return "the replicas that start now; demand.atLeast before the next rise that is known"
        case Cause.POOL, Because.LIMIT:
            return f"more room in {finding.names[0]}, or a placement on another pool"
        case Cause.POOL, _:
            return f"capacity on {placement}, or a placement of {stage} on another pool"
        case Cause.COLD_START, _ if finding.names and finding.names[0].endswith(_FAILS):
            pods = f"kubectl -n {decision.spec.namespace} describe pods"
            return f"what ends its replicas on {placement} with {finding.names[0]}: {pods}"
        case Cause.COLD_START, Because.FROM_ZERO:
            return f"replicas.min of 1 at {stage}, so that it never starts from none"
        case Cause.COLD_START, _:
            return f"a faster start on {placement}: its image and its weights on the node, or spare replicas"
        case Cause.SLOWER_STAGE, Because.CPU_QUOTA:
            return f"a higher CPU limit for {stage}, or none: a quota stops a replica in the middle of a batch"
        case Cause.SLOWER_STAGE, Because.NEIGHBOURS:
            return f"replicas of {stage} on instances of their own (perInstance: 1)"
        case Cause.SLOWER_STAGE, Because.NEW_VERSION:
            return f"the version of before: kubectl rollout undo, of the target of {stage} on {placement}"
        case Cause.SLOWER_STAGE, Because.COLD_CACHES:
            return "some minutes; a warm-up before a replica reports that it is ready"
        case Cause.SLOWER_STAGE, _:
            return f"what changed at {stage} undone, or the replicas that its present speed needs"
        case Cause.PASS_RATIO, _:
            return f"a stricter setting of {stage} (noise opens a voice activity gate), or more replicas behind it"
        case Cause.UNEVEN_SESSIONS, _:
            moved = count_of(int(finding.numbers["move"]), "session")
            return f"{moved} moved to other replicas by the ingress, or scaling.rebalance.mode: Drain"
        case Cause.QUEUEING, Because.STUCK_REPLICA if not finding.names:
            return f"a restart of the replicas of {stage}: kubectl rollout restart, of its targets"
        case Cause.QUEUEING, Because.STUCK_REPLICA:
            return f"the end of these pods: kubectl -n {decision.spec.namespace} delete pod {finding.names[0]}"
        case Cause.QUEUEING, Because.OTHER_TENANT:
            return f"replicas for all who share {stage}, or a lower priority of the others"
        case Cause.QUEUEING, Because.BATCH_WAIT:
            return f"a shorter batching.wait at the server of {stage}"
        case Cause.QUEUEING, Because.LIMIT:
            return f"a higher limit ({finding.names[0]})"
        case Cause.QUEUEING, _:
            return f"{'the replicas that start now, or ' if decision.starting else ''}a higher scaling.scaleUp.maxStep"
        case Cause.DATA_PLANE, Because.NETWORK:
            return f"more replicas or receive queues for {stage}, on other nodes"
        case Cause.DATA_PLANE, Because.REFUSED:
            return f"more replicas of {stage}, which have more slots"
        case Cause.DATA_PLANE, Because.RETRIES:
            return "clients that wait longer before they try again, and an ingress that obeys status.admissible"
        case Cause.DATA_PLANE, _:
            return "a look at the ingress and the network between the stages: no replica shortens it"
        case Cause.MEMORY_GROWTH, _:
            return f"memory.kvCache.growth declared at {stage}, fewer slots, or sessions that end earlier"
        case Cause.QUALITY_DROP, _:
            limit = f"sla.maxWerBySlice for {finding.names[0]}" if finding.names[0] else "sla.maxWer"
            return f"{limit} below {share_words(finding.numbers['now'])}, which takes the switch back"
        case Cause.METRICS, Because.LOST:
            return "demand.query in Prometheus by hand: see the condition MetricsAvailable"
        case Cause.METRICS, Because.MISSING:
            return f"the metrics of {stage} in Prometheus: sluice doctor asks for each"
        case Cause.METRICS, _:
            return "the metrics of the stages beside those of the ingress: sluice doctor names what contradicts itself"
    raise AssertionError(finding.cause)
