"""Operators that share a fleet and a pool, as processes on a real API server. `docs/shards.md` has the properties."""

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from large_fleets import PER_INSTANCE, PRICES, Json, LargeFleet, Maker
from operator_process import SYNTHETIC, OperatorProcess
from typing_extensions import override
from waiting import until

from controller.core.state.shards import shard_of
from controller.kube.gateway import DEPLOYMENTS, LEASES, PIPELINES, POOLS, NotFound
from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.host.binaries import Binaries

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]
INSTANCES = 10
FIRST, SECOND = (next(f"team-{n}" for n in range(100) if shard_of(f"team-{n}", 2) == shard) for shard in (0, 1))
WITHIN_S = 240.0
LEASE = "30s"  # long enough for a machine that is busy with other tests
POOL = "shared-inf-0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Teams(LargeFleet):
    """A pipeline in a namespace of each of two shards, and one pool with `INSTANCES` instances of one replica each."""

    pipelines: int = 2
    prefix: str = "shared"

    def __post_init__(self) -> None:
        object.__setattr__(self, "namespaces", (FIRST, SECOND))

    @override
    def nodes_per_pool(self) -> int:
        return INSTANCES

    @override
    def pools(self) -> Iterator[Json]:
        yield {
            "apiVersion": POOLS.api_version,
            "kind": "ComputePool",
            "metadata": {"name": POOL},
            "spec": {
                "device": "Inferentia",
                "nodeSelector": {"sluice.dev/pool": POOL},
                "price": {"perHour": "0.8"},
                "capacity": {"instances": INSTANCES},
            },
        }

    @override
    def nodes(self) -> Iterator[Json]:
        return (each for each in LargeFleet.nodes(self) if each["metadata"]["labels"]["sluice.dev/pool"] == POOL)

    @override
    def resources(self) -> Iterator[tuple[Json, list[Json]]]:
        for namespace in self.namespaces:
            yield pipeline(namespace, 20), [deployment(namespace)]


def pipeline(namespace: str, demand: float) -> Json:
    placement = {
        "pool": POOL,
        "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "captions-asr"},
        "replicas": {"min": 1, "max": 20},
        "perInstance": 1,
        "serviceTime": {"fixed": "50ms", "cv": "0.4"},
        "startup": "1s",
    }
    return {
        "apiVersion": PIPELINES.api_version,
        "kind": "SpeechPipeline",
        "metadata": {"name": "captions", "namespace": namespace},
        "spec": {
            "demand": {"unit": "Requests", "query": str(demand)},
            "sla": {"latency": "400ms"},
            "budget": {"perHour": "100"},
            "scaling": {"scaleDown": {"stabilization": "1s"}},
            "stages": [{"name": "asr", "placements": [placement]}],
        },
    }


def deployment(namespace: str) -> Json:
    from large_fleets import _deployment

    made: Json = _deployment("captions-asr", namespace, POOL, 1)
    return made


class OnePerNode(Maker):
    """Pods of the first team take nodes from the first one on, those of the second from the last: none shares one."""

    @override
    def _create_pod(self, pod: Json) -> None:
        number = int(pod["metadata"]["name"].rsplit("-", 1)[1])
        place = number if pod["metadata"]["namespace"] == FIRST else INSTANCES - 1 - number
        super()._create_pod({**pod, "spec": {**pod["spec"], "nodeName": f"{POOL}-{place}"}})


class World:
    """The cluster with both pipelines, and what is always true of it."""

    def __init__(self, maker: Maker, kubeconfig: Path, folder: Path) -> None:
        self.maker, self.kubeconfig, self.folder = maker, kubeconfig, folder
        self.fleet = Teams()
        self.started: list[OperatorProcess] = []
        self.least = dict.fromkeys(self.fleet.namespaces, 0)

    def operator(self, *flags: str) -> OperatorProcess:
        log = self.folder / f"operator-{len(self.started)}.log"
        self.started.append(
            OperatorProcess(
                self.kubeconfig, log, "--lease-duration", LEASE, *flags, program=SYNTHETIC, starts_within_s=WITHIN_S
            )
        )
        return self.started[-1]

    def replicas(self) -> dict[str, int]:
        """Return the replicas of each team; together they are within the pool, and none is below `least`."""
        now = {
            namespace: int(self.maker.gateway.get(DEPLOYMENTS, namespace, "captions-asr")["spec"]["replicas"])
            for namespace in self.fleet.namespaces
        }
        assert sum(now.values()) <= INSTANCES, now
        assert all(now[namespace] >= least for namespace, least in self.least.items()), (now, self.least)
        return now

    def entries(self) -> list[Json]:
        found: list[Json] = self.maker.gateway.get(POOLS, None, POOL).get("status", {}).get("shards", [])
        assert sum(max(each["used"], each["agreed"], each.get("allowed", 0)) for each in found) <= INSTANCES, found
        return found

    def claims(self) -> tuple[str, ...]:
        statuses = (
            self.maker.gateway.get(PIPELINES, namespace, "captions").get("status", {})
            for namespace in self.fleet.namespaces
        )
        return tuple(status.get("operator", "") for status in statuses)

    def reaches(self, holds: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        """Wait until the replicas are as `holds` says, while pods come and go as they are asked for."""
        seen: dict[str, int] = {}

        def reached() -> bool:
            seen.update(self.replicas())
            self.entries()
            self.maker.play_pods(self.fleet)
            return holds(seen)

        until(reached, within_s=WITHIN_S)
        return seen

    def stays(self, operator: OperatorProcess, cycles: int = 6) -> dict[str, int]:
        begun = operator.cycles()
        return self.reaches(lambda _: operator.cycles() >= begun + cycles)

    def load(self, namespace: str, demand: float) -> None:
        query = {"spec": {"demand": {"query": str(demand)}}}
        self.maker.call("PATCH", PIPELINES.path(namespace, "captions"), query)


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("shards"), binaries) as cluster:
        for path in ("crds", "controller/kube/rbac.yaml"):
            subprocess.run(
                [binaries.kubectl, "--kubeconfig", cluster.kubeconfig, "apply", "-f", ROOT / path],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        with config.new_client_from_config(str(cluster.kubeconfig)) as admin:
            may_have_leases(admin, "sluice-0", "sluice-1")
        yield cluster


def may_have_leases(admin: client.ApiClient, *names: str) -> None:
    """Give the operator the rights to the Leases of shards, as the chart does."""
    rights = client.RbacAuthorizationV1Api(admin)
    leases: dict[str, Any] = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    rules = [{**leases, "resourceNames": list(names), "verbs": ["get", "patch"]}]
    rights.create_namespaced_role("sluice-system", {"metadata": {"name": "shards"}, "rules": rules})
    binding = rights.read_namespaced_role_binding("sluice", "sluice-system")
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "shards"}
    subjects = admin.sanitize_for_serialization(binding.subjects)
    rights.create_namespaced_role_binding(
        "sluice-system", {"metadata": {"name": "shards"}, "roleRef": reference, "subjects": subjects}
    )


@pytest.fixture
def world(cluster: ControlPlane, tmp_path: Path) -> Iterator[World]:
    kubeconfig = tmp_path / "operator.kubeconfig"
    cluster.service_account_kubeconfig("sluice-system", "sluice", kubeconfig)
    maker = OnePerNode(cluster.kubeconfig)
    world = World(maker, kubeconfig, tmp_path)
    maker.create(world.fleet)
    yield world
    for process in world.started:
        process.kill()
    for namespace in world.fleet.namespaces:
        for path in (PIPELINES.path(namespace, "captions"), DEPLOYMENTS.path(namespace, "captions-asr")):
            maker.call("DELETE", path)
    maker.call("DELETE", POOLS.path(None, POOL))
    until(lambda: _is_gone(maker))
    maker.close()


def _is_gone(maker: Maker) -> bool:
    try:
        maker.gateway.get(POOLS, None, POOL)
    except NotFound:
        return True
    return False


def test_two_shards_share_a_pool_and_one_that_ends_keeps_what_it_has(world: World) -> None:
    for namespace in (FIRST, SECOND):
        world.load(namespace, 140)  # nine replicas or more
    first, second = world.operator("--shard", "0/2"), world.operator("--shard", "1/2")
    # Neither has what the other needs as much.
    world.reaches(lambda now: sum(now.values()) == INSTANCES and min(now.values()) >= 3)
    assert world.claims() == ("sluice-system/sluice-0", "sluice-system/sluice-1")
    status = world.maker.gateway.get(PIPELINES, FIRST, "captions")["status"]
    assert status["limitedBy"] == f"Allowance/{POOL}"
    pool = world.maker.gateway.get(POOLS, None, POOL)["status"]
    assert (pool["limit"], pool["operator"]) == (INSTANCES, "sluice-system/sluice-0")

    second.kill()
    before = world.replicas()
    world.load(FIRST, 400)
    assert world.stays(first) == before

    world.load(FIRST, 20)
    world.load(SECOND, 400)
    second = world.operator("--shard", "1/2")
    world.reaches(lambda now: now[SECOND] >= 7 and now[FIRST] <= 3)
    assert first.end() == second.end() == 0


def test_a_fleet_of_one_operator_is_handed_over_to_two_shards_without_a_replica_less(world: World) -> None:
    world.load(FIRST, 40)
    world.load(SECOND, 60)
    one = world.operator()
    reached = world.reaches(lambda now: now[FIRST] >= 3 and now[SECOND] >= 4)
    assert world.claims() == ("sluice-system/sluice",) * 2
    world.least = world.stays(one)
    assert world.least.keys() == reached.keys()

    shards = [world.operator("--shard", f"{index}/2") for index in range(2)]
    until(lambda: all(shard.leads() for shard in shards), within_s=WITHIN_S)
    world.stays(shards[0])
    assert world.claims() == ("sluice-system/sluice",) * 2
    assert one.end() == 0
    until(lambda: world.claims() == ("sluice-system/sluice-0", "sluice-system/sluice-1"), within_s=WITHIN_S)
    until(lambda: all("allowed" in each for each in world.entries()) and len(world.entries()) == 2, within_s=WITHIN_S)
    world.stays(shards[0])
    world.load(SECOND, 90)
    world.reaches(lambda now: now[SECOND] >= world.least[SECOND] + 1)

    # And back to one operator.
    world.least = world.stays(shards[0])
    one = world.operator()
    until(one.leads, within_s=WITHIN_S)
    world.stays(one)
    assert world.claims() == ("sluice-system/sluice-0", "sluice-system/sluice-1")
    assert [shard.end() for shard in shards] == [0, 0]
    for lease in ("sluice-0", "sluice-1"):  # otherwise it waits for twenty durations: the shards may come back
        world.maker.call("DELETE", LEASES.path("sluice-system", lease))
    until(lambda: world.claims() == ("sluice-system/sluice",) * 2, within_s=WITHIN_S)
    world.load(SECOND, 120)
    world.reaches(lambda now: now[SECOND] >= world.least[SECOND] + 1)
    assert one.end() == 0


def test_shards_that_assess_a_part_of_their_pipelines_in_a_cycle_count_what_all_of_them_use(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "operator.kubeconfig"
    cluster.service_account_kubeconfig("sluice-system", "sluice", kubeconfig)
    fleet = LargeFleet(pipelines=40, prefix="half", per_namespace=5)
    count = Counter(shard_of(namespace, 2) for namespace in fleet.namespaces)
    assert min(count[0], count[1]) >= 2, "both shards have more pipelines than they assess in a cycle"
    with ExitStack() as parts:
        maker = parts.enter_context(closing(Maker(cluster.kubeconfig)))
        maker.create(fleet)
        parts.callback(maker.remove, fleet)
        flags = ("--lease-duration", LEASE, "--small-turns", "6")
        operators = []
        for index in range(2):
            shard = (*flags, "--shard", f"{index}/2")
            log = tmp_path / f"operator-{index}.log"
            operators.append(OperatorProcess(kubeconfig, log, *shard, program=SYNTHETIC, starts_within_s=WITHIN_S))
            parts.callback(operators[-1].kill)

        def used() -> dict[str, list[int]]:
            """Return the instances that the replicas of each shard need, by pool."""
            replicas: dict[str, list[int]] = {fleet.pool(name): [0, 0] for name in PRICES}
            for page in maker.gateway.pages(DEPLOYMENTS):
                for each in page.items:
                    if (namespace := each["metadata"]["namespace"]) in fleet.namespaces:
                        pool = each["spec"]["template"]["spec"]["nodeSelector"]["sluice.dev/pool"]
                        replicas[pool][shard_of(namespace, 2)] += each["spec"]["replicas"]
            sizes = {fleet.pool(name): size for name, size in PER_INSTANCE.items()}
            return {pool: [-(-count // sizes[pool]) for count in counts] for pool, counts in replicas.items()}

        def entered() -> dict[str, list[int]]:
            """Return the instances that the shards say they use, by pool; together they stay within each pool."""
            found: dict[str, list[int]] = {}
            for page in maker.gateway.pages(POOLS):
                for pool in page.items:
                    entries = pool.get("status", {}).get("shards", [])
                    committed = sum(max(each["used"], each["agreed"], each.get("allowed", 0)) for each in entries)
                    assert committed <= pool["spec"]["capacity"]["instances"], entries
                    found[pool["metadata"]["name"]] = [each["used"] for each in entries]
            return found

        def assessed() -> set[str]:
            return {
                condition["reason"]
                for page in maker.gateway.pages(PIPELINES)
                for each in page.items
                for condition in each.get("status", {}).get("conditions", [])
                if condition["type"] == "Ready"
            }

        def at_rest() -> bool:
            began = [operator.cycles() for operator in operators]
            moved = maker.play_pods(fleet)
            before = used()
            until(
                lambda: all(operator.cycles() >= cycles + 3 for operator, cycles in zip(operators, began, strict=True)),
                within_s=WITHIN_S,
            )
            return not moved and used() == before == entered() and "NotAssessed" not in assessed()

        until(at_rest, within_s=WITHIN_S)
        for operator in operators:
            share = re.search(r"^sluice_assessed_ratio ([0-9.]+)$", operator.get("/metrics")[1], re.MULTILINE)
            assert share is not None
            assert float(share[1]) < 1.0
        assert [operator.end() for operator in operators] == [0, 0]
