"""The rows of the fault matrix, in order."""

import contextlib
import functools
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

import hostile_resources
import psutil
from fault_proxy import (
    EVERY_WRITE,
    Asked,
    Call,
    Delay,
    Effect,
    Expire,
    Refuse,
    Reset,
    Stall,
    Truncate,
    Where,
)
from kubernetes import client
from prometheus_faults import (
    clock_ahead,
    duplicated,
    empty,
    not_a_number,
    partial,
    scraped_twice,
    stale,
    without_pods,
)
from run_rows import RUN_ROWS
from story import (
    LOOK_S,
    Column,
    Fault,
    Judge,
    Row,
    conclude,
    never_down,
    recovered,
    replanned,
    settle,
    story,
    wait_until,
    within_caps,
)
from world import GROUP, NAMESPACE, VERSION, Operator, World, until

from simulations.lab.pods.agent import WORKER_ANNOTATION

WATCHES = Where(watch=True)
NOT_OF_LEASES = Where(path="(?!.*/leases).*")
ROLE = "sluice"
MAIN = "main-plenty"
_PROBES = 3
"""Failed probes in a row after which a kubelet restarts a container."""
# Mounts the root read-only in a new namespace; needs no rights where users may create user namespaces.
READ_ONLY = (
    shutil.which("unshare") or "unshare",
    "-rm",
    "sh",
    "-c",
    'mount -o remount,ro,bind / && exec "$@"',
    "read-only",
)


# -- faults


def api(effect: Effect, where: Where | None = None) -> Fault:
    """An effect on requests to the API server."""
    return lambda _, operator: operator.api.fault(effect, where)


def metrics(effect: Effect) -> Fault:
    """An effect on queries of Prometheus."""
    return lambda _, operator: operator.metrics.fault(effect)


@contextlib.contextmanager
def bursts(_: World, operator: Operator) -> Iterator[None]:
    """500 and 503 in turn, with gaps in which requests pass."""
    done = threading.Event()

    def burst() -> None:
        while not done.is_set():
            for status in (500, 503):
                with operator.api.fault(Refuse(status=status)):
                    done.wait(0.6)
                done.wait(0.1)

    thread = threading.Thread(target=burst)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def without(*, group: str, resource: str) -> Fault:
    """Remove the operator's right to a kind from its role, and restore it; watches are cut, so that they reconnect."""

    @contextlib.contextmanager
    def removed(world: World, operator: Operator) -> Iterator[None]:
        rbac = client.RbacAuthorizationV1Api(world.core.api_client)
        rules = client.ApiClient().sanitize_for_serialization(rbac.read_cluster_role(ROLE))["rules"]
        left = [
            {**rule, "resources": [other for other in rule["resources"] if other != resource]}
            if group in rule["apiGroups"]
            else rule
            for rule in rules
        ]
        rbac.patch_cluster_role(ROLE, {"rules": [rule for rule in left if rule["resources"]]})
        try:
            with operator.api.fault(Reset(), Where(watch=True, path=f".*/{resource}")):
                time.sleep(0.1)
            yield
        finally:
            rbac.patch_cluster_role(ROLE, {"rules": rules})

    return removed


def says(name: str, kind: str, *words: str) -> Callable[[World], bool]:
    """Return a check whether a condition in its bad state has these words."""

    def look(world: World) -> bool:
        condition = world.condition(name, kind)
        good = "False" if kind == "Conflict" else "True"
        return condition.get("status", good) != good and all(word in condition["message"] for word in words)

    return look


def no_metrics(world: World) -> bool:
    """Whether the status says that metrics are missing."""
    return world.condition("main", "MetricsAvailable").get("status") == "False"


def up_to_date(world: World, judge: Judge) -> None:
    """Check that the status is up to date within a cycle."""
    judge.in_time(
        Column.REASON, "up to date", lambda: world.status().get("limitedBy") == "Budget", world.pace.cycles(1)
    )


# -- the API server


def deleted_in_the_gap(world: World, judge: Judge) -> None:
    """`other` is deleted while watches are cut, its load rises, and the missed events have expired."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    with operator.api.fault(Refuse(status=503), WATCHES):
        with operator.api.fault(Reset(), WATCHES):
            time.sleep(0.2)  # running watches are cut, new ones refused
        world.objects.delete_namespaced_custom_object(GROUP, VERSION, NAMESPACE, "speechpipelines", "other")
        world.offered["other"] = world.offered["main"] = world.MUCH
        time.sleep(world.pace.lasting(60))
    with operator.api.fault(Expire(), WATCHES):
        time.sleep(0.3)
    _gone_and_recovered(world, judge, operator, began_s)


def compacted(world: World, judge: Judge) -> None:
    """The same with the real server: it is killed, and the new one has no history for watches to resume from."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    with operator.api.down():
        world.objects.delete_namespaced_custom_object(GROUP, VERSION, NAMESPACE, "speechpipelines", "other")
        world.offered["other"] = world.offered["main"] = world.MUCH
        world.restart_api_server()
    _gone_and_recovered(world, judge, operator, began_s)


def _gone_and_recovered(world: World, judge: Judge, operator: Operator, began_s: float) -> None:
    ended_s = time.monotonic()
    recovered(world, judge, operator, more_s=world.pace.takeover_s)
    up_to_date(world, judge)
    judge.in_time(
        Column.RECOVERY,
        "other is forgotten",
        lambda: 'pipeline="other"' not in operator.get("/metrics")[1],
        max(LOOK_S, world.pace.cycles(2) + world.pace.takeover_s - (time.monotonic() - ended_s)),
    )
    counts = {entry.desired["other-plenty"] for entry in world.recorder.since(began_s)}
    stays = counts == {world.base_replicas()["other-plenty"]}
    judge.hold(Column.NEVER_DOWN, stays, f"the deleted pipeline keeps its replicas: {sorted(counts)}")
    conclude(world, judge, operator, began_s)


MAINS_STATUS = ".*/speechpipelines/main/status"
MAINS_SCALE = f".*/deployments/{MAIN}/scale"
_DENIED = Refuse(status=403, message='admission webhook "policy.example.com" denied the request')
_TIMEOUT_S = 11.0
"""Time of a write that is not answered, and of the request that shows that the server is there."""


def own_failure(world: World, judge: Judge) -> None:
    """Every write about `main` fails with 500, while its load and that of `other` rise and a pool is lost."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    where = Where(path=f"{MAINS_STATUS}|{MAINS_SCALE}", methods=["PATCH"])
    with operator.api.fault(Refuse(status=500, message="failed calling webhook"), where):
        world.cordon("scarce")
        world.lose_a_pod("spare-scarce")
        world.offered["main"] = world.offered["other"] = world.MUCH
        judge.in_time(
            Column.OTHERS,
            "other is served",
            lambda: world.replicas("other-plenty") > world.base_replicas()["other-plenty"],
            world.pace.cycles(2),
        )
        replanned(world, judge, began_s)
        judge.in_time(
            Column.REASON,
            "Events",
            lambda: {"StatusRefused", "ScaleFailed"} <= {why for name, why, _ in world.events() if name == "main"},
            world.pace.cycles(1),
        )
    recovered(world, judge, operator)
    up_to_date(world, judge)
    conclude(world, judge, operator, began_s)


def status_unwritten(effect: Effect, words: str, timeout_s: float = 0.0) -> Callable[[World, Judge], None]:
    """A webhook keeps the status of `main` from being written while its load rises: it is scaled all the same.

    Its memory is in the Lease. A cycle in which the webhook does not answer takes `timeout_s` longer.
    """

    def run(world: World, judge: Judge) -> None:
        world.begin()
        operator = world.operator()
        settle(world, operator)
        began_s = time.monotonic()
        with operator.api.fault(effect, Where(path=MAINS_STATUS, methods=["PATCH"])):
            world.cordon("scarce")
            world.lose_a_pod("spare-scarce")
            world.offered["main"] = world.MUCH
            recovered(world, judge, operator, more_s=3 * timeout_s)
            kept = world.kept_memory()
            judge.hold(Column.RESTART, len(kept) == 1, f"the Lease has the memory of {len(kept)} pipeline")
            judge.in_time(
                Column.REASON,
                "an Event",
                lambda: any(words in text for name, _, text in world.events() if name == "main"),
                world.pace.cycles(1) + timeout_s,
            )
            started_again(world, operator)
            # The process was killed, so its lease must expire before the next one decides.
            decides_s = time.monotonic() + world.pace.takeover_s + 3 * timeout_s
            replanned(world, judge, max(began_s, decides_s - world.pace.lasting(60)))
        up_to_date(world, judge)
        judge.in_time(Column.RESTART, "the Lease forgets it", lambda: not world.kept_memory(), world.pace.cycles(2))
        conclude(world, judge, operator, began_s)

    return run


def one_kind(world: World, judge: Judge) -> None:
    """The server asks to wait for 30 s with lists of autoscalers, while the load rises and a pool is lost."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    busy = Refuse(status=429, headers={"Retry-After": "30"})
    with operator.api.fault(busy, Where(path=".*/horizontalpodautoscalers")):
        time.sleep(2 * world.pace.interval_s)  # it has been asked to wait
        world.cordon("scarce")
        world.lose_a_pod("spare-scarce")
        lost_s = time.monotonic()
        world.offered["main"] = world.MUCH
        recovered(world, judge, operator)
        up_to_date(world, judge)
        replanned(world, judge, lost_s)
    conclude(world, judge, operator, began_s)


# -- the operator's process


def interrupted(
    stop: Callable[[World, Operator], None], resume: Callable[[World, Operator], None], *, takes_over: bool = False
) -> Callable[[World, Judge], None]:
    """The process stops, resumes or restarts; meanwhile the load rises and a pool is lost."""

    def run(world: World, judge: Judge) -> None:
        world.begin()
        operator = world.operator()
        settle(world, operator)
        began_s = time.monotonic()
        stop(world, operator)
        world.cordon("scarce")
        world.lose_a_pod("spare-scarce")
        world.offered["main"] = world.MUCH
        wait_until(began_s + world.pace.lasting(60))
        resume(world, operator)
        resumed_s = time.monotonic()
        recovered(world, judge, operator, more_s=world.pace.takeover_s if takes_over else 0.0)
        up_to_date(world, judge)
        replanned(world, judge, resumed_s)
        conclude(world, judge, operator, began_s)

    return run


def started_again(world: World, operator: Operator) -> None:
    """Restart the process, as a kubelet does, and wait for its endpoint."""
    operator.kill()
    world.again(operator)
    until(lambda: operator.get("/livez")[0], what="the operator to be up again")


def _goes_on(operator: Operator) -> bool:
    """Whether the process completes another cycle, and neither ends nor fails its liveness probe.

    A thread that gets no memory at its start can block the thread that started it for ever.
    """
    cycles, failures = operator.cycles(), 0
    while operator.alive() and failures < _PROBES:
        if operator.cycles() > cycles:
            return True
        failures = 0 if operator.get("/livez")[0] == HTTPStatus.OK else failures + 1
        time.sleep(1.0)
    return False


def killed_at_every_write(world: World, judge: Judge) -> None:
    """The process is killed before and after the server receives each write of a cycle that scales.

    Each time the budget changes, so that there is a cycle with writes; started again, the operator must come to what
    that budget pays for.
    """
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    writes, kills = _writes_of_a_cycle(world, operator), 0
    for moment in ("before", "after"):
        for number in range(1, writes + 1):
            up = world.replicas(MAIN) != world.CAPPED
            kills += _kill_at(world, operator, number, moment, up=up)
            if not operator.alive():
                started_again(world, operator)
            due = world.CAPPED if up else _SCANT_REPLICAS
            judge.in_time(
                Column.RECOVERY,
                f"{due} replicas after a kill {moment} write {number}",
                lambda due=due: world.replicas(MAIN) == due,  # type: ignore[misc]
                world.pace.cycles(2) + world.pace.takeover_s,
            )
    judge.shorten(Column.RECOVERY, f"{kills} kills at {writes} writes, each recovered in time")
    judge.hold(Column.RECOVERY, kills >= 2 * writes - 2, f"{kills} kills")
    world.patch_pipeline("main", _budget(world.BUDGETS["main"]))
    until(lambda: world.replicas(MAIN) == world.CAPPED, what="main at its cap")
    up_to_date(world, judge)
    judge.hold(Column.OTHERS, world.condition("bad", "Ready").get("reason") == "InvalidSpec", "main beside bad")
    conclude(world, judge, operator, began_s)


_SCANT, _SCANT_REPLICAS = 1.0, 5
"""A smaller budget of `main`, and the replicas that it allows."""


def _budget(per_hour: float) -> dict[str, Any]:
    return {"spec": {"budget": {"perHour": f"{per_hour:g}"}}}


_IN_A_CYCLE = Where(path="(?!.*/leases/).*", methods=EVERY_WRITE.methods)


def _writes_of_a_cycle(world: World, operator: Operator) -> int:
    """Return the number of writes to scale up once, statuses and Events included."""
    since_s = time.monotonic()
    world.offered["main"] = world.MUCH
    until(lambda: world.replicas(MAIN) == world.CAPPED, what="main at its cap")
    time.sleep(0.5 * world.pace.interval_s)
    return max(3, min(6, len(operator.api.writes(_IN_A_CYCLE, since_s=since_s))))


def _kill_at(world: World, operator: Operator, number: int, moment: str, *, up: bool) -> int:
    """Kill the operator at the given write after a change of the budget; return 0 if that write did not happen."""
    seen, killed = 0, threading.Event()

    def count(_: Asked) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            operator.signal(signal.SIGKILL)
            killed.set()

    call = Call(before=count) if moment == "before" else Call(after=count)
    with operator.api.fault(call, _IN_A_CYCLE):
        world.patch_pipeline("main", _budget(world.BUDGETS["main"] if up else _SCANT))
        killed.wait(4 * world.pace.interval_s)
    if killed.is_set():
        until(lambda: not operator.alive(), what="the operator to be dead")
    return int(killed.is_set())


def replicas(count: int) -> Callable[[World, Judge], None]:
    """Several operators; the leader is killed and, where there are three, the next one is paused beyond its lease."""

    def run(world: World, judge: Judge) -> None:
        world.alone()
        world.begin()
        operators = [world.another_operator(f"replica-{index}") for index in range(count)]
        settle(world, *operators)
        began_s = time.monotonic()
        world.cordon("scarce")
        world.lose_a_pod("spare-scarce")
        first = _leader(operators)
        first.kill()
        world.offered["main"] = world.MUCH
        left = [operator for operator in operators if operator is not first]
        recovered(world, judge, left[0], more_s=world.pace.takeover_s)
        replanned(world, judge, began_s)
        up_to_date(world, judge)
        if count > 2:
            second = _leader(left)
            second.signal(signal.SIGSTOP)
            world.offered["other"] = world.MUCH
            judge.in_time(
                Column.RECOVERY,
                "the third takes over from one that is paused",
                lambda: world.replicas("other-plenty") > world.base_replicas()["other-plenty"],
                world.pace.cycles(2) + world.pace.takeover_s,
            )
            second.signal(signal.SIGCONT)
            judge.in_time(
                Column.ONE_WRITER,
                "the one that was paused finds that another leads, and ends",
                lambda: not second.alive(),
                world.pace.cycles(2) + world.pace.takeover_s,
            )
            left = [operator for operator in left if operator is not second]
        _one_after_the_other(judge, operators, began_s)
        last = _leader(left)
        for operator in left:
            if operator is not last:  # nothing else may happen besides the restart
                operator.kill()
        conclude(world, judge, last, began_s)

    return run


def _leader(operators: Sequence[Operator]) -> Operator:
    until(lambda: any(operator.leads() for operator in operators), what="a leader")
    return next(operator for operator in operators if operator.leads())


def _one_after_the_other(judge: Judge, operators: Sequence[Operator], since_s: float) -> None:
    """Check that no write of an operator was accepted after one of its successor."""
    order = sorted((write.at_s, o.name) for o in operators for write in o.api.writes(NOT_OF_LEASES, since_s=since_s))
    writers = [name for index, (_, name) in enumerate(order) if index == 0 or order[index - 1][1] != name]
    judge.hold(
        Column.ONE_WRITER,
        len(writers) == len(set(writers)) and writers,
        f"{len(order)} writes accepted, from {' then '.join(writers)}",
    )


def clock_jumps(world: World, judge: Judge) -> None:
    """The wall clock jumps an hour ahead, later an hour back; at first nothing else changes."""
    world.alone()
    clock = world.folder / "clock"
    clock.write_text("0")
    world.begin()
    operator = world.another_operator("jumping", wrapped=("--clock", str(clock)))
    settle(world, operator)
    began_s = time.monotonic()
    for offset in ("3600", "0"):
        clock.write_text(offset)
        cycles = operator.cycles()
        until(lambda: operator.cycles() >= cycles + 3, what="three cycles")  # noqa: B023
        never_down(world, judge, began_s, time.monotonic())
    clock.write_text("-3600")
    world.cordon("scarce")
    world.lose_a_pod("spare-scarce")
    world.offered["main"] = world.MUCH
    recovered(world, judge, operator)
    up_to_date(world, judge)
    clock.write_text("0")
    replanned(world, judge, time.monotonic())
    within_caps(world, judge, began_s)
    judge.not_applicable(Column.RESTART, "a restart would be one with another clock")


def clock_behind(world: World, judge: Judge) -> None:
    """The operator's clock is five minutes behind that of the API server; later it restarts with the right one."""
    world.alone()
    clock = world.folder / "clock"
    clock.write_text("-300")
    world.begin()
    operator = world.another_operator("behind", wrapped=("--clock", str(clock)))
    settle(world, operator)
    began_s = time.monotonic()
    world.cordon("scarce")
    world.lose_a_pod("spare-scarce")
    world.offered["main"] = world.MUCH
    recovered(world, judge, operator)
    up_to_date(world, judge)
    replanned(world, judge, began_s)
    found = re.search(r"^sluice_clock_skew_seconds ([-0-9.e+]+)", operator.get("/metrics")[1], re.MULTILINE)
    skew_s = 0.0 if found is None else float(found[1])
    judge.hold(Column.REASON, abs(skew_s - 300) < 1.5, f"sluice_clock_skew_seconds {skew_s:.1f}")
    conclude(world, judge, operator, began_s)


@contextlib.contextmanager
def disk_full(_: World, operator: Operator) -> Iterator[None]:
    """No file of the process can grow, not even its log."""
    process, unlimited = psutil.Process(operator.child.pid), psutil.RLIM_INFINITY
    process.rlimit(psutil.RLIMIT_FSIZE, (0, unlimited))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, (unlimited, unlimited))


def read_only(world: World, judge: Judge) -> None:
    """The operator runs on a read-only file system."""
    command = ["sh", "-c", f"{' '.join(map(shlex.quote, READ_ONLY))} sh -c '! touch /tmp/probe'"]
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        for column in Column:
            judge.not_applicable(column, f"this machine gives no read-only file system: {probe.stderr.strip()}")
        return
    world.alone()
    world.begin()
    operator = world.another_operator("read-only", before=READ_ONLY)
    settle(world, operator)
    began_s = time.monotonic()
    world.cordon("scarce")
    world.lose_a_pod("spare-scarce")
    world.offered["main"] = world.MUCH
    recovered(world, judge, operator)
    up_to_date(world, judge)
    replanned(world, judge, began_s)
    conclude(world, judge, operator, began_s)


def out_of_memory(world: World, judge: Judge) -> None:
    """No memory can be allocated for a while; a process that ends is restarted, as by a kubelet."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    process = psutil.Process(operator.child.pid)
    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms, psutil.RLIM_INFINITY))
    world.offered["main"] = world.MUCH
    wait_until(began_s + world.pace.lasting(60))
    if operator.alive():
        process.rlimit(psutil.RLIMIT_AS, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
    if not _goes_on(operator):
        started_again(world, operator)
    recovered(world, judge, operator, more_s=world.pace.takeover_s)
    up_to_date(world, judge)
    conclude(world, judge, operator, began_s)


# -- others


def autoscaler(kind: str) -> Callable[[World, Judge], None]:
    """Another autoscaler targets the workload of `main`, and all loads rise."""

    def run(world: World, judge: Judge) -> None:
        if kind == "ScaledObject":
            installed(world, KEDA)
        world.begin()
        operator = world.operator()
        settle(world, operator)
        began_s = time.monotonic()
        remove = _horizontal(world) if kind == "HorizontalPodAutoscaler" else _scaled_object(world)
        try:
            judge.in_time(Column.REASON, "named", lambda: says("main", "Conflict", kind)(world), world.pace.cycles(1))
            known_s = time.monotonic()
            world.offered["main"] = world.offered["other"] = world.MUCH
            judge.in_time(
                Column.OTHERS,
                "other is served",
                lambda: world.replicas("other-plenty") > world.base_replicas()["other-plenty"],
                world.pace.cycles(2),
            )
            time.sleep(3 * world.pace.interval_s)
            ours = _written_by(world, MAIN, "sluice", known_s)
            judge.hold(Column.ONE_WRITER, not ours, f"{len(ours)} writes of Sluice after the conflict was reported")
        finally:
            remove()
        recovered(world, judge, operator)
        conclude(world, judge, operator, began_s)

    return run


def _horizontal(world: World) -> Callable[[], None]:
    autoscalers = client.AutoscalingV2Api(world.core.api_client)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": MAIN}
    autoscalers.create_namespaced_horizontal_pod_autoscaler(
        NAMESPACE,
        {
            "metadata": {"name": "theirs"},
            "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 20, "metrics": _BY_CPU},
        },
    )
    return lambda: autoscalers.delete_namespaced_horizontal_pod_autoscaler("theirs", NAMESPACE)


_BY_CPU = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
]
KEDA: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "scaledobjects.keda.sh"},
    "spec": {
        "group": "keda.sh",
        "scope": "Namespaced",
        "names": {"plural": "scaledobjects", "singular": "scaledobject", "kind": "ScaledObject"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


VERTICAL_AUTOSCALER: dict[str, Any] = {
    **KEDA,
    "metadata": {
        "name": "verticalpodautoscalers.autoscaling.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "autoscaling.k8s.io",
        "scope": "Namespaced",
        "names": {
            "plural": "verticalpodautoscalers",
            "singular": "verticalpodautoscaler",
            "kind": "VerticalPodAutoscaler",
        },
        "versions": [{**KEDA["spec"]["versions"][0], "name": "v1"}],
    },
}


def karpenter_kinds() -> list[dict[str, Any]]:
    """Return the kinds of Karpenter that the operator reads, without their schemas."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kind.lower()}s.karpenter.sh"},
            "spec": {
                "group": "karpenter.sh",
                "scope": "Cluster",
                "names": {"plural": f"{kind.lower()}s", "singular": kind.lower(), "kind": kind},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        }
        for kind in ("NodePool", "NodeClaim")
    ]


def installed(world: World, *kinds: dict[str, Any]) -> None:
    """Install `kinds`, and wait until they are served."""
    extensions = client.ApiextensionsV1Api(world.core.api_client)
    for kind in kinds:
        with contextlib.suppress(client.ApiException):  # it exists from an earlier row
            extensions.create_custom_resource_definition(kind)
        until(functools.partial(_served, world, kind), what="the kind to be served")


def _served(world: World, kind: dict[str, Any]) -> bool:
    spec = kind["spec"]
    try:
        world.objects.list_cluster_custom_object(spec["group"], spec["versions"][0]["name"], spec["names"]["plural"])
    except client.ApiException:
        return False
    return True


def _scaled_object(world: World) -> Callable[[], None]:
    """Create a ScaledObject without KEDA's operator: Sluice reads the objects only."""
    body = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "theirs"},
        "spec": {"scaleTargetRef": {"name": MAIN}, "triggers": []},
    }
    place = ("keda.sh", "v1alpha1", NAMESPACE, "scaledobjects")

    def created() -> bool:
        try:
            world.objects.create_namespaced_custom_object(*place, body)
        except client.ApiException:
            return False
        return True

    until(created, what="the kind to be served")
    return lambda: world.objects.delete_namespaced_custom_object(*place, "theirs")


def git_ops(world: World, judge: Judge) -> None:
    """A tool resets the replicas of `main` whenever they differ from its repository."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    done = threading.Event()
    theirs = world.base_replicas()[MAIN]

    def reset() -> None:
        while not done.wait(0.2):
            if world.replicas(MAIN) != theirs:
                world.scale(MAIN, theirs, manager="gitops")

    tool = threading.Thread(target=reset)
    tool.start()
    try:
        world.offered["main"] = world.offered["other"] = world.MUCH
        # No object announces the tool: it takes three writes, one per cycle, and the cycle that reports it.
        told = says("main", "Conflict", "another controller")
        judge.in_time(Column.REASON, "told", lambda: told(world), world.pace.cycles(8))
        known_s = time.monotonic()
        time.sleep(4 * world.pace.interval_s)
        fought = _written_by(world, MAIN, "sluice", began_s)
        ours = [at_s for at_s in fought if at_s > known_s]
        judge.hold(Column.ONE_WRITER, not ours, f"{len(fought)} writes until it was reported, {len(ours)} after")
        judge.in_time(
            Column.OTHERS,
            "other is served",
            lambda: world.replicas("other-plenty") > world.base_replicas()["other-plenty"],
            world.pace.cycles(2),
        )
    finally:
        done.set()
        tool.join()
    judge.not_applicable(Column.RECOVERY, "after a contest nothing is written for ten minutes, then it is tried again")
    # When another controller removes replicas while Sluice adds some, both exist for a moment.
    conclude(world, judge, operator, began_s, others_remove=True)


def _written_by(world: World, deployment: str, manager: str, since_s: float) -> list[float]:
    return [
        at_s
        for at_s, name, _, who in tuple(world.recorder.managers)
        if name == deployment and who == manager and at_s >= since_s
    ]


def hostile(world: World, judge: Judge) -> None:
    """Many huge, deep and strange resources, created past the schema that would refuse them."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    with hostile_resources.beside(world) as made:
        world.cordon("scarce")
        world.lose_a_pod("spare-scarce")
        lost_s = time.monotonic()
        world.offered["main"] = world.MUCH
        recovered(world, judge, operator)
        up_to_date(world, judge)
        replanned(world, judge, lost_s)
        told_s = judge.in_time(
            Column.REASON,
            f"{made.count} resources are told what is wrong with them",
            lambda: not made.without_condition(),
            made.longest_s + world.pace.cycles(2),
        )
        if told_s is None:
            judge.explain(Column.REASON, f"without a condition: {', '.join(made.without_condition()[:5])}")
        judge.hold(Column.OTHERS, operator.alive(), f"beside {made.count} hostile resources")
        within_caps(world, judge, began_s)
    judge.not_applicable(Column.RESTART, "shown without them")


# -- the workload


def target_deleted(world: World, judge: Judge) -> None:
    """The Deployment of `main` is deleted while it should grow, and created again."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    world.apps.delete_namespaced_deployment(MAIN, NAMESPACE)
    world.offered["main"] = world.offered["other"] = world.MUCH
    told = says("main", "TargetsFound", MAIN)
    judge.in_time(Column.REASON, "named", lambda: told(world), world.pace.cycles(1))
    judge.in_time(
        Column.OTHERS,
        "other is served",
        lambda: world.replicas("other-plenty") > world.base_replicas()["other-plenty"],
        world.pace.cycles(2),
    )
    world.install()
    recovered(world, judge, operator)
    conclude(world, judge, operator, began_s)


def paused_meanwhile(world: World, judge: Judge) -> None:
    """The roll-out of `main`'s Deployment is paused, which must not prevent scaling; then the pipeline is paused."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    world.apps.patch_namespaced_deployment(MAIN, NAMESPACE, {"spec": {"paused": True}})
    world.offered["main"] = world.MUCH
    recovered(world, judge, operator)
    world.patch_pipeline("main", {"spec": {"mode": "Paused"}})
    judge.in_time(
        Column.REASON,
        "says Paused",
        lambda: world.condition("main", "Ready").get("reason") == "Paused",
        world.pace.cycles(1),
    )
    world.offered["main"] = world.LITTLE
    time.sleep(3 * world.pace.interval_s)
    judge.hold(Column.NEVER_DOWN, world.replicas(MAIN) == world.CAPPED, "a paused pipeline keeps its replicas")
    world.apps.patch_namespaced_deployment(MAIN, NAMESPACE, {"spec": {"paused": False}})
    conclude(world, judge, operator, began_s)


def rolled_out(world: World, judge: Judge) -> None:
    """All pods of `main` are replaced by a roll-out while it should grow."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    stamp = {"metadata": {"annotations": {"rolled-out": f"{began_s}"}}}
    world.apps.patch_namespaced_deployment(MAIN, NAMESPACE, {"spec": {"template": stamp}})
    world.offered["main"] = world.MUCH
    recovered(world, judge, operator)
    up_to_date(world, judge)
    never_down(world, judge, began_s, time.monotonic())
    until(world.settled, what="the roll-out to end")
    within_caps(world, judge, began_s, desired_only=True)
    judge.not_applicable(Column.RESTART, "shown without a roll-out")


@contextlib.contextmanager
def full_quota(world: World) -> Iterator[None]:
    """A ResourceQuota that the pods of the namespace exhaust. The lab has no controller for its status."""
    pods = f"{len(world.core.list_namespaced_pod(NAMESPACE).items)}"
    world.core.create_namespaced_resource_quota(
        NAMESPACE, {"metadata": {"name": "full"}, "spec": {"hard": {"pods": pods}}}
    )
    world.core.patch_namespaced_resource_quota_status(
        "full", NAMESPACE, {"status": {"hard": {"pods": pods}, "used": {"pods": pods}}}
    )
    try:
        yield
    finally:
        world.core.delete_namespaced_resource_quota("full", NAMESPACE)


@contextlib.contextmanager
def failing_webhook(world: World) -> Iterator[None]:
    """A webhook for the pods of `main` in this namespace, which nothing answers."""
    webhooks = client.AdmissionregistrationV1Api(world.core.api_client)
    webhooks.create_validating_webhook_configuration(
        {
            "metadata": {"name": "broken"},
            "webhooks": [
                {
                    "name": "broken.sluice.dev",
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "failurePolicy": "Fail",
                    "timeoutSeconds": 1,
                    "clientConfig": {"url": "https://127.0.0.1:1/broken"},
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
                    "objectSelector": {"matchLabels": {"app": MAIN}},
                    "rules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                    ],
                }
            ],
        }
    )
    try:
        yield
    finally:
        webhooks.delete_validating_webhook_configuration("broken")


def not_created(
    refuse: Callable[[World], contextlib.AbstractContextManager[None]], words: str
) -> Callable[[World, Judge], None]:
    """The pods that `main` needs are refused with `words`, later admitted; there is never a pod that is pending."""

    def run(world: World, judge: Judge) -> None:
        world.begin()
        soon = f"{world.pace.lasting(60):g}s"
        backoff = {"spec": {"unavailable": {"backoff": {"initial": soon, "max": soon}}}}
        world.objects.patch_cluster_custom_object(GROUP, VERSION, "computepools", "plenty", backoff)
        operator = world.operator()
        settle(world, operator)
        began_s, deadline_s = time.monotonic(), world.pace.lasting(60)
        with refuse(world):
            until(lambda: _refused(world), what="pods to be refused")
            world.offered["main"] = world.MUCH
            told = says("main", "PoolsAvailable", "not created", words)
            judge.in_time(Column.REASON, "told", lambda: told(world), deadline_s + world.pace.cycles(3))
            judge.in_time(
                Column.PENDING,
                "the replicas that do not exist are given up",
                lambda: world.replicas(MAIN) == world.base_replicas()[MAIN],
                world.pace.cycles(2),
            )
            available = {c["type"]: c["status"] for c in world.pool_status("plenty")["conditions"]}["Available"]
            judge.hold(Column.OTHERS, available == "True", f"pool plenty: Available={available}")
        recovered(world, judge, operator, more_s=2 * deadline_s + world.pace.cycles(4))
        up_to_date(world, judge)
        conclude(world, judge, operator, began_s)

    return run


def _refused(world: World) -> bool:
    """Whether a pod of `main` would be refused: the API server learns of quotas and webhooks a moment later."""
    container = {"name": "asr", "image": "none"}
    pod = {"metadata": {"name": "probe", "labels": {"app": MAIN}}, "spec": {"containers": [container]}}
    try:
        world.core.create_namespaced_pod(NAMESPACE, pod, dry_run="All")
    except client.ApiException:
        return True
    return False


def no_capacity(world: World, judge: Judge) -> None:
    """Nodes of `scarce` are made by Karpenter. One on its way is waited for; then the provider has no capacity.

    Karpenter's objects and Events are put on the server as it writes them. `spare` needs twice the nodes that exist.
    """
    installed(world, *karpenter_kinds())
    world.begin()
    elastic = {"spec": {"capacity": {"nodePool": "scarce", "instances": None}}}
    world.objects.patch_cluster_custom_object(GROUP, VERSION, "computepools", "scarce", elastic)
    node_pool = {"metadata": {"name": "scarce"}, "spec": {"limits": {"nodes": "4"}}}
    until(lambda: _created(world, "NodePool", node_pool), what="the kinds to be served")
    labels = {"karpenter.sh/nodepool": "scarce"}
    launched = [{"type": "Launched", "status": "True", "lastTransitionTime": _now()}]
    claim = {"metadata": {"name": "scarce-a", "labels": labels}, "status": {"conditions": launched}}
    until(lambda: _created(world, "NodeClaim", claim), what="a NodeClaim")
    try:
        operator = world.operator()
        settle(world, operator)
        limit = lambda: world.pool_status("scarce").get("limit") == 4  # noqa: E731
        judge.in_time(Column.REASON, "the limit of the NodePool", limit, world.pace.cycles(2))
        full = world.INSTANCES["scarce"] * world.PER_INSTANCE
        world.offered["spare"] = 250.0
        until(lambda: world.replicas("spare-scarce") > full, what="replicas that need a node")
        time.sleep(world.pace.lasting(60) + world.pace.cycles(3))
        held = world.replicas("spare-plenty") == 0 and world.replicas("spare-scarce") > full
        judge.hold(Column.PENDING, held, "they wait for a node on its way, longer than the deadline")
        # The node on its way may be for others; it does not delay what is said of these two tries.
        _insufficient_capacity(world, "scarce-b")
        time.sleep(11)  # launches that fail within ten seconds are of one batch
        _insufficient_capacity(world, "scarce-c")
        judge.in_time(
            Column.PENDING, "spare uses plenty", lambda: world.replicas("spare-plenty") > 0, world.pace.cycles(3)
        )
        told = lambda: "no offering is left" in str(world.pool_status("scarce").get("conditions"))  # noqa: E731
        judge.in_time(Column.REASON, "the words of the provider", told, world.pace.cycles(1))
        kept = world.replicas("spare-scarce")
        judge.hold(Column.NEVER_DOWN, kept >= full, f"spare-scarce keeps its {full} replicas, and has {kept}")
        withdrawn = lambda: world.replicas("spare-scarce") == full  # noqa: E731
        judge.in_time(Column.PENDING, "pending replicas are withdrawn", withdrawn, world.pace.cycles(3))
    finally:
        world.objects.delete_cluster_custom_object("karpenter.sh", "v1", "nodeclaims", "scarce-a")
        world.objects.delete_cluster_custom_object("karpenter.sh", "v1", "nodepools", "scarce")


def _created(world: World, kind: str, body: dict[str, Any]) -> bool:
    document = {"apiVersion": "karpenter.sh/v1", "kind": kind, **body}
    try:
        world.objects.create_cluster_custom_object("karpenter.sh", "v1", f"{kind.lower()}s", document)
    except client.ApiException:
        return False
    return True


def _insufficient_capacity(world: World, claim: str) -> None:
    world.core.create_namespaced_event(
        "default",
        {
            "metadata": {"name": f"{claim}.1"},
            "involvedObject": {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": claim},
            "reason": "InsufficientCapacityError",
            "message": f"NodeClaim {claim} event: no offering is left",
            "type": "Warning",
            "firstTimestamp": _now(),
            "lastTimestamp": _now(),
            "count": 1,
            "source": {"component": "karpenter"},
        },
    )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def rolled_out_on_a_full_pool(world: World, judge: Judge) -> None:
    """`spare` fills its pool; a roll-out without room for its surge neither fails the pool nor costs a replica."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    full = world.INSTANCES["scarce"] * world.PER_INSTANCE
    world.offered["spare"] = 200.0
    until(lambda: world.replicas("spare-scarce") == full and world.settled(), what="the pool to be full")
    began_s = time.monotonic()
    stamp = {"metadata": {"annotations": {"rolled-out": f"{began_s}"}}}
    one_more = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    world.apps.patch_namespaced_deployment(
        "spare-scarce", NAMESPACE, {"spec": {"strategy": one_more, "template": stamp}}
    )

    def shown() -> bool:
        status = world.status("spare")
        updated = [each.get("updated") for each in status["stages"][0]["placements"] if each["pool"] == "scarce"]
        return updated == [1] and "roll-out is in progress" in "".join(status["memory"]["explanation"]["lines"])

    judge.in_time(Column.REASON, "shown", shown, world.pace.cycles(2))
    wait_until(began_s + world.pace.lasting(60) + world.pace.cycles(4))
    conditions = {c["type"]: c for c in world.pool_status("scarce")["conditions"]}
    judge.hold(Column.OTHERS, conditions["Available"]["status"] == "True", f"pool scarce: {conditions['Available']}")
    counts = [entry.desired["spare-scarce"] for entry in world.recorder.since(began_s)]
    judge.hold(Column.NEVER_DOWN, min(counts) == full, f"spare-scarce {min(counts)}..{max(counts)}")
    world.offered["spare"] = world.BASE["spare"]
    judge.in_time(Column.RECOVERY, "the roll-out ends when there is room", world.settled, 10 * world.pace.cycles(2))
    within_caps(world, judge, began_s, desired_only=True)
    judge.not_applicable(Column.RESTART, "shown without a roll-out")


def rolled_out_with_a_bad_image(world: World, judge: Judge) -> None:
    """The new revision of `main` cannot start. The one before goes on serving, and the pool stays in use."""
    world.begin()
    operator = world.operator()
    settle(world, operator)
    began_s = time.monotonic()
    template = world.apps.read_namespaced_deployment(MAIN, NAMESPACE).spec.template.metadata.annotations
    good = template[WORKER_ANNOTATION]

    def roll_out(worker: str) -> None:
        stamp = {"metadata": {"annotations": {WORKER_ANNOTATION: worker}}}
        world.apps.patch_namespaced_deployment(MAIN, NAMESPACE, {"spec": {"template": stamp}})

    roll_out("not a worker")
    told = says("main", "PoolsAvailable", "of the new revision", "CreateContainerConfigError")
    judge.in_time(Column.REASON, "told", lambda: told(world), world.pace.lasting(60) + world.pace.cycles(4))
    conditions = {c["type"]: c for c in world.pool_status("plenty")["conditions"]}
    judge.hold(Column.OTHERS, conditions["Available"]["status"] == "True", "pool plenty stays available")
    never_down(world, judge, began_s, time.monotonic())
    roll_out(good)
    until(world.settled, what="the roll-out to end")
    world.offered["main"] = world.MUCH
    recovered(world, judge, operator, more_s=2 * world.pace.lasting(60))
    within_caps(world, judge, began_s, desired_only=True)
    judge.not_applicable(Column.RESTART, "shown without a roll-out")


ROWS: tuple[Row, ...] = (
    story("API: 429 with Retry-After", api(Refuse(status=429, headers={"Retry-After": "1"})), lasts_s=60, load="rises"),
    story("API: 500 and 503 in bursts", bursts, lasts_s=60, load="rises"),
    Row(name="API: 500 for one object", run=own_failure),
    Row(name="API: a webhook refuses statuses", run=status_unwritten(_DENIED, "policy.example.com")),
    Row(name="API: a webhook hangs", run=status_unwritten(Stall(), "timed out", _TIMEOUT_S)),
    Row(name="API: Retry-After for one kind", run=one_kind),
    Row(name="API: 410, deleted in the gap", run=deleted_in_the_gap),
    Row(name="API: restarted, deleted in the gap", run=compacted),
    story("API: watches are cut", api(Reset(), WATCHES), lasts_s=60, load="rises"),
    story("API: silent stall", api(Stall()), lasts_s=120, load="rises"),
    story(
        "API: 3 s latency",
        lambda world, operator: operator.api.fault(Delay(seconds=world.pace.lasting(3))),
        lasts_s=60,
        load="rises",
    ),
    story("API: truncated JSON", api(Truncate()), lasts_s=60, load="rises"),
    story(
        "API: 403 on scales",
        without(group="apps", resource="deployments/scale"),
        lasts_s=60,
        load="rises",
        reason=says("main", "ScalesAccepted", "403"),
    ),
    story(
        "API: 403 on Deployments",
        without(group="apps", resource="deployments"),
        lasts_s=120,
        load="rises",
        reason=says("main", "TargetsFound", "403"),
        noticed_after_s=3.0,
    ),
    story(
        "API: 403 on pods",
        without(group="", resource="pods"),
        lasts_s=120,
        load="rises",
        reason=says("main", "TargetsFound", "403"),
        noticed_after_s=3.0,
    ),
    story(
        "API: 403 on nodes",
        without(group="", resource="nodes"),
        lasts_s=120,
        load="rises",
        reason=lambda world: "403" in str(world.pool_status("plenty").get("conditions")),
        noticed_after_s=3.0,
    ),
    story("API: 409 storm", api(Refuse(status=409), Where(methods=["PATCH"])), lasts_s=60, load="rises"),
    story("API: down for 2 min", lambda _, operator: operator.api.down(), lasts_s=120, load="rises"),
    story(
        "Prometheus: down",
        lambda _, operator: operator.metrics.down(),
        lasts_s=120,
        load="falls",
        reason=no_metrics,
        acts_meanwhile=True,
    ),
    story(
        "Prometheus: slow",
        lambda world, operator: operator.metrics.fault(Delay(seconds=0.8 * world.pace.interval_s)),
        lasts_s=120,
        load="falls",
        reason=no_metrics,
        acts_meanwhile=True,
    ),
    story("Prometheus: empty", metrics(empty()), lasts_s=120, load="falls", reason=no_metrics, acts_meanwhile=True),
    story(
        "Prometheus: NaN", metrics(not_a_number()), lasts_s=120, load="falls", reason=no_metrics, acts_meanwhile=True
    ),
    story(
        "Prometheus: half the pods",
        metrics(partial()),
        lasts_s=120,
        load="falls",
        reason=no_metrics,
        acts_meanwhile=True,
    ),
    story(
        "Prometheus: 5 min stale",
        lambda world, operator: operator.metrics.fault(stale(world.pace.lasting(300))),
        lasts_s=120,
        load="falls",
        reason=no_metrics,
        acts_meanwhile=True,
    ),
    story("Prometheus: clock ahead", metrics(clock_ahead(3600.0)), lasts_s=120, load="stays", acts_meanwhile=True),
    story("Prometheus: duplicate series", metrics(duplicated()), lasts_s=120, load="stays", acts_meanwhile=True),
    story(
        "Prometheus: 2 s a query",
        lambda world, operator: operator.metrics.fault(Delay(seconds=0.13 * world.pace.interval_s)),
        lasts_s=120,
        load="rises",
        reason=lambda world: world.replicas(MAIN) == world.CAPPED,
        noticed_after_s=3.0,
        acts_meanwhile=True,
    ),
    story(
        "Prometheus: no pod labels",
        metrics(without_pods()),
        lasts_s=120,
        load="falls",
        reason=says("main", "ScrapesHealthy", "have no label pod", "--pod-label"),
        acts_meanwhile=True,
    ),
    story(
        "Prometheus: pods scraped twice",
        metrics(scraped_twice()),
        lasts_s=120,
        load="stays",
        reason=says("main", "ScrapesHealthy", "scraped more than once", "counted once"),
        acts_meanwhile=True,
    ),
    Row(name="operator: kill -9 at every write", run=killed_at_every_write),
    Row(
        name="operator: paused for 60 s",
        run=interrupted(
            lambda _, operator: operator.signal(signal.SIGSTOP), lambda _, operator: operator.signal(signal.SIGCONT)
        ),
    ),
    Row(name="operator: killed as by OOM", run=interrupted(lambda _, o: o.kill(), started_again, takes_over=True)),
    Row(name="operator: no memory to be had", run=out_of_memory),
    Row(name="operator: two replicas", run=replicas(2)),
    Row(name="operator: three replicas", run=replicas(3)),
    Row(name="operator: clock jumps 1 h", run=clock_jumps),
    Row(name="operator: clock 5 min behind", run=clock_behind),
    Row(name="operator: read-only file system", run=read_only),
    story("operator: file size limit", disk_full, lasts_s=60, load="rises"),
    Row(name="resources: malformed and hostile", run=hostile),
    Row(name="others: an HPA", run=autoscaler("HorizontalPodAutoscaler")),
    Row(name="others: a KEDA ScaledObject", run=autoscaler("ScaledObject")),
    Row(name="others: a GitOps tool", run=git_ops),
    Row(name="target: deleted, recreated", run=target_deleted),
    Row(name="target: paused", run=paused_meanwhile),
    Row(name="target: rolled out", run=rolled_out),
    Row(name="target: rolled out on a full pool", run=rolled_out_on_a_full_pool),
    Row(name="target: rolled out with a bad image", run=rolled_out_with_a_bad_image),
    Row(name="pool: Karpenter finds no capacity", run=no_capacity),
    Row(name="target: a quota refuses its pods", run=not_created(full_quota, "exceeded quota")),
    Row(name="target: a webhook refuses its pods", run=not_created(failing_webhook, "broken.sluice.dev")),
    *RUN_ROWS,
)
