"""What the API server refuses the operator's identity, on a cluster of its own with the policies installed."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config, utils
from waiting import until

from controller.core.state.spec import Target
from controller.kube.gateway import Conflict, Forbidden, Gateway
from simulations.lab.cluster.cluster import install
from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab

KUBE = Path(__file__).parents[4] / "controller" / "kube"
SYSTEM, ACCOUNT, HOLDER, FORMER = "sluice-system", "sluice", "sluice-new", "sluice-old"
TARGET = Target(api_version="apps/v1", kind="Deployment", name="captions")
DIAL = Target(api_version="lab.sluice.dev/v1", kind="Dial", name="captions")


class Cluster:
    """The operator's manifests on a cluster, a workload without pods, and gateways with tokens of pods."""

    def __init__(self, control_plane: ControlPlane, admin: client.ApiClient, folder: Path) -> None:
        self.admin = admin
        self.leases = client.CoordinationV1Api(admin)
        self.core, self.apps = client.CoreV1Api(admin), client.AppsV1Api(admin)
        self._control_plane = control_plane
        self._folder = folder
        install(admin)
        labels = {"app": "captions"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "asr", "image": "none"}]}}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        self.apps.create_namespaced_deployment("default", {"metadata": {"name": "captions"}, "spec": spec})

    def gateway(self, pod: str | None) -> Gateway:
        """Return the operator's gateway, with a token of `pod` or of no pod."""
        path = self._folder / f"{pod}.kubeconfig"
        self._control_plane.service_account_kubeconfig(SYSTEM, ACCOUNT, path, pod=pod)
        return Gateway(path)

    def hold(self, pod: str | None) -> None:
        """Give the lease to a process in `pod`, or to nobody."""
        self.leases.patch_namespaced_lease(
            ACCOUNT, SYSTEM, {"spec": {"holderIdentity": None if pod is None else f"{pod}_5f3a"}}
        )

    def scale(self, gateway: Gateway, target: Target = TARGET) -> None:
        """Ask for another number of replicas, at whatever version the workload is."""
        while True:
            scale = gateway.read_scale("default", target)
            try:
                gateway.patch_scale("default", target, 1 - min(1, scale.replicas), scale.resource_version)
            except Conflict:  # its status has moved since
                continue
            return

    def may_scale(self, gateway: Gateway, target: Target = TARGET) -> bool:
        try:
            self.scale(gateway, target)
        except Forbidden:
            return False
        return True


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("policies")
    with (
        ControlPlane(folder, binaries) as control_plane,
        config.new_client_from_config(str(control_plane.kubeconfig)) as admin,
    ):
        cluster = Cluster(control_plane, admin, folder)
        with cluster.gateway(FORMER) as former:
            until(lambda: not cluster.may_scale(former))  # a policy takes effect a moment after it is made
        yield cluster


@pytest.fixture
def holder(cluster: Cluster) -> Iterator[Gateway]:
    """The gateway of the replica that holds the lease, and has been seen to by the policy."""
    with cluster.gateway(HOLDER) as gateway:
        cluster.hold(HOLDER)
        until(lambda: cluster.may_scale(gateway))
        yield gateway


@pytest.fixture
def former(cluster: Cluster) -> Iterator[Gateway]:
    with cluster.gateway(FORMER) as gateway:
        yield gateway


def test_only_the_holder_of_the_lease_scales(cluster: Cluster, holder: Gateway, former: Gateway) -> None:
    cluster.scale(holder)
    with pytest.raises(Forbidden, match="write: holder sluice-new_5f3a, request from sluice-old"):
        cluster.scale(former)


def test_the_right_changes_hands_with_the_lease(cluster: Cluster, holder: Gateway, former: Gateway) -> None:
    cluster.hold(FORMER)
    until(lambda: cluster.may_scale(former))
    assert not cluster.may_scale(holder)


def test_a_lease_that_nobody_holds_permits_nobody(cluster: Cluster, holder: Gateway, former: Gateway) -> None:
    cluster.hold(None)
    until(lambda: not cluster.may_scale(holder))
    with pytest.raises(Forbidden, match="holder <none>, request from sluice-old"):
        cluster.scale(former)


def test_a_pod_whose_name_begins_alike_is_another(cluster: Cluster, holder: Gateway) -> None:
    with cluster.gateway("sluice-ne") as alike:
        assert not cluster.may_scale(alike)


def test_a_token_that_is_bound_to_no_pod_is_refused(cluster: Cluster, holder: Gateway) -> None:
    with cluster.gateway(None) as anybody, pytest.raises(Forbidden, match="a token that is not bound to a pod"):
        cluster.scale(anybody)


def test_statuses_and_the_scales_of_other_kinds_are_kept_alike(
    cluster: Cluster, holder: Gateway, former: Gateway
) -> None:
    utils.create_from_dict(cluster.admin, a_kind_with_a_scale())
    objects = client.CustomObjectsApi(cluster.admin)
    dial = {"apiVersion": DIAL.api_version, "kind": "Dial", "metadata": {"name": "captions"}, "spec": {"replicas": 0}}

    def created() -> bool:
        try:
            objects.create_namespaced_custom_object("lab.sluice.dev", "v1", "default", "dials", dial)
        except client.ApiException as error:
            if error.status != 404:
                raise
            return False
        return True

    until(created)
    grant(cluster, [{"apiGroups": ["lab.sluice.dev"], "resources": ["dials/scale"], "verbs": ["get", "patch"]}])
    until(lambda: cluster.may_scale(holder, DIAL))

    with pytest.raises(Forbidden, match="only the holder"):
        cluster.scale(former, DIAL)


def test_everybody_else_scales_as_ever_even_when_there_is_no_lease(cluster: Cluster, holder: Gateway) -> None:
    cluster.leases.delete_namespaced_lease(ACCOUNT, SYSTEM)
    try:
        scale = cluster.apps.patch_namespaced_deployment_scale("captions", "default", {"spec": {"replicas": 1}})
        assert scale.spec.replicas == 1
    finally:
        cluster.leases.create_namespaced_lease(SYSTEM, {"metadata": {"name": ACCOUNT}})


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"replicas": 3}},
        {"spec": {"template": {"spec": {"containers": [{"name": "asr", "image": "evil"}]}}}},
        {"metadata": {"labels": {"a": "b"}}},
    ],
    ids=["replicas", "image", "labels"],
)
def test_rights_given_by_mistake_do_not_let_the_operator_change_a_workload(
    cluster: Cluster, holder: Gateway, patch: dict[str, Any]
) -> None:
    grant(cluster, [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "patch"]}])
    with client_of(cluster) as operator:
        until(lambda: readable(operator))
        with pytest.raises(client.ApiException, match="may change only the scale of a workload"):
            client.AppsV1Api(operator).patch_namespaced_deployment("captions", "default", patch)


def test_of_a_config_map_only_keys_that_then_have_batch_settings_may_change(cluster: Cluster, holder: Gateway) -> None:
    cluster.core.create_namespaced_config_map(
        "default", {"metadata": {"name": "batching"}, "data": {"asr": "", "other": "kept"}}
    )
    grant(cluster, [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch", "create", "delete"]}])
    settings = '{"max": 8, "waitMicroseconds": 5000}'
    with client_of(cluster) as operator:
        core = client.CoreV1Api(operator)

        def may(patch: dict[str, Any]) -> bool:
            try:
                core.patch_namespaced_config_map("batching", "default", patch)
            except client.ApiException as error:
                if error.status != 403:
                    raise
                return False
            return True

        until(lambda: may({"data": {"asr": settings}}))
        assert may({"data": {"vad": settings}})
        for forbidden in (
            {"data": {"asr": "anything else"}},
            {"data": {"other": None}},
            {"data": {"other": "changed"}},
            {"binaryData": {"asr.bin": "eA=="}},
            {"immutable": True},
            {"metadata": {"labels": {"app": "captions"}}},
            {"metadata": {"annotations": {"a": "b"}}},
        ):
            assert not may(forbidden), forbidden
        with pytest.raises(client.ApiException, match="403"):
            core.delete_namespaced_config_map("batching", "default")


def test_of_a_pod_only_the_deletion_cost_and_the_sessions_label_may_change(cluster: Cluster, holder: Gateway) -> None:
    pod = {
        "metadata": {
            "name": "asr",
            "annotations": {"team": "speech"},
            "labels": {"app": "asr", "sluice.dev/sessions": "open"},
        },
        "spec": {"containers": [{"name": "asr", "image": "none"}]},
    }
    cluster.core.create_namespaced_pod("default", pod)
    grant(cluster, [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch", "delete"]}])
    cost = {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-5"}}}
    with client_of(cluster) as operator:
        core = client.CoreV1Api(operator)

        def may(patch: dict[str, Any]) -> bool:
            try:
                core.patch_namespaced_pod("asr", "default", patch)
            except client.ApiException as error:
                if error.status != 403:
                    raise
                return False
            return True

        until(lambda: may(cost))
        assert may({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": None}}})
        assert may({"metadata": {"labels": {"sluice.dev/sessions": "closed"}}})
        assert may({"metadata": {"labels": {"sluice.dev/sessions": "open"}}})
        for forbidden in (
            {"metadata": {"labels": {"sluice.dev/sessions": "other"}}},
            {"metadata": {"labels": {"sluice.dev/sessions": None}}},
            {"metadata": {"labels": {"app": None}}},
            {"metadata": {"labels": {"team": "mine"}}},
            {"spec": {"containers": [{"name": "asr", "image": "evil"}]}},
            {"metadata": {"labels": {"app": "captions"}}},
            {"metadata": {"annotations": {"team": "mine"}}},
            {"metadata": {"annotations": {"team": None}}},
            {"metadata": {"annotations": {"other": "x"}}},
            {"metadata": {"finalizers": ["sluice.dev/keep"]}},
        ):
            assert not may(forbidden), forbidden
        with pytest.raises(client.ApiException, match="403"):
            core.delete_namespaced_pod("asr", "default")
        cluster.hold(FORMER)
        until(lambda: not may(cost))


class TestWhoeverWritesAPipeline:
    """They have the operator scale its targets, so they must be allowed to do that themselves."""

    def test_may_not_have_a_workload_scaled_that_they_could_not_scale(self, cluster: Cluster) -> None:
        with a_user(cluster, "nobody") as user:
            until(lambda: NO_RIGHT in refusal(user, "theirs"))

    def test_may_with_a_right_to_all_of_a_kind_however_many_targets(self, cluster: Cluster) -> None:
        rule = {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["patch"]}
        with a_user(cluster, "scaler", rule) as user:
            until(lambda: applied(user, a_pipeline("many", stages=20)))

    def test_may_with_a_right_to_each_by_name_and_no_more(self, cluster: Cluster) -> None:
        rule = {"apiGroups": ["apps"], "resources": ["deployments/scale"], "resourceNames": ["vad"], "verbs": ["patch"]}
        with a_user(cluster, "one-by-one", rule) as user:
            until(lambda: applied(user, a_pipeline("named")))
            assert NO_RIGHT in refusal(user, "named-too", stages=2)

    def test_needs_the_right_to_the_target_of_each_variant(self, cluster: Cluster) -> None:
        rule = {
            "apiGroups": ["apps"],
            "resources": ["deployments/scale"],
            "resourceNames": ["fp16"],
            "verbs": ["patch"],
        }
        with a_user(cluster, "one-variant", rule) as user:
            until(lambda: applied(user, with_variants("choice", "fp16")))
            assert NO_RIGHT in refused(lambda: apply(user, with_variants("wider-choice", "fp16", "int8")))

    def test_is_asked_again_when_they_change_its_targets(self, cluster: Cluster) -> None:
        with a_user(cluster, "editor") as user:
            apply(cluster.admin, a_pipeline("shared"))
            richer = {"spec": {"budget": {"perHour": "99"}}}
            until(
                lambda: (
                    NO_RIGHT
                    in refused(lambda: pipelines(user).patch_namespaced_custom_object(*PIPELINES, "shared", richer))
                )
            )


class TestOnCall:
    """The role that the documentation gives to people on call suffices for what it says, and no more is asked."""

    @staticmethod
    def annotate(user: client.ApiClient, pipeline: str, **annotations: str | None) -> str:
        named = {f"sluice.dev/{name}" if name in {"pin", "pause"} else name: text for name, text in annotations.items()}
        patch = {"metadata": {"annotations": named}}
        return refused(lambda: pipelines(user).patch_namespaced_custom_object(*PIPELINES, pipeline, patch))

    @staticmethod
    def documented() -> list[dict[str, Any]]:
        page = (KUBE.parents[1] / "docs" / "how-to" / "pause-and-pin.md").read_text()
        (block,) = re.findall(r"```yaml[^\n]*on call\"\n(.*?)```", page, re.DOTALL)
        rules: list[dict[str, Any]] = yaml.safe_load(block)["rules"]
        return rules

    def test_pauses_pins_and_resumes_by_the_documented_role(self, cluster: Cluster) -> None:
        apply(cluster.admin, a_pipeline("on-call"))
        with a_user(cluster, "on-call", *self.documented()) as user:
            until(lambda: not self.annotate(user, "on-call", pin="vad/cpu=2"))
            assert not self.annotate(user, "on-call", pause="true")
            assert not self.annotate(user, "on-call", pin=None, pause=None)

    def test_without_the_right_to_scale_everything_but_a_pin_and_the_spec(self, cluster: Cluster) -> None:
        apply(cluster.admin, a_pipeline("watched"))
        rules = [rule for rule in self.documented() if rule["apiGroups"] != ["apps"]]
        with a_user(cluster, "watcher", *rules) as user:
            until(lambda: not self.annotate(user, "watched", pause="true"))
            assert not self.annotate(user, "watched", team="speech", pause=None)
            assert NO_RIGHT in self.annotate(user, "watched", pin="vad/cpu=2")
            for patch in ({"metadata": {"labels": {"a": "b"}}}, {"metadata": {"finalizers": ["example.com/x"]}}):
                write = partial(pipelines(user).patch_namespaced_custom_object, *PIPELINES, "watched", patch)
                written = refused(write)
                assert not written, patch
            pinned = {"metadata": {"annotations": {"sluice.dev/pin": "vad/cpu=2"}, "finalizers": []}}
            pipelines(cluster.admin).patch_namespaced_custom_object(*PIPELINES, "watched", pinned)
            assert not self.annotate(user, "watched", pin=None), "the end of a pin returns to the plan"
            richer = {"spec": {"budget": {"perHour": "99"}}}
            assert NO_RIGHT in refused(
                lambda: pipelines(user).patch_namespaced_custom_object(*PIPELINES, "watched", richer)
            )


class TestPriorities:
    """Those of other tenants are safe from an author who takes the highest."""

    LIMIT = "spec.priority: must be at most {} in namespace default; the limits are settings of the operator"

    @staticmethod
    def create(cluster: Cluster, priority: int) -> str:
        """Create another pipeline; a policy takes effect a moment after it is changed, and until then it is there."""
        return refused(lambda: apply(cluster.admin, ranked(f"ranked-{next(NUMBERS)}", priority)))

    @staticmethod
    def change(cluster: Cluster, **spec: Any) -> str:
        patch = {"spec": spec}
        return refused(lambda: pipelines(cluster.admin).patch_namespaced_custom_object(*PIPELINES, "ranked", patch))

    def test_above_the_limit_are_refused(self, cluster: Cluster) -> None:
        until(lambda: self.LIMIT.format(1000) in self.create(cluster, 1001))
        apply(cluster.admin, ranked("ranked", 1000))
        assert self.LIMIT.format(1000) in self.change(cluster, priority=1_000_000_000)

    def test_that_were_within_the_limit_do_not_block_other_changes_when_it_is_lowered(self, cluster: Cluster) -> None:
        policies = client.AdmissionregistrationV1Api(cluster.admin)
        policy = policies.read_validating_admission_policy("sluice-priorities")
        policy.spec.variables[0].expression = '{"": 1000, "default": 10}'
        policies.replace_validating_admission_policy("sluice-priorities", policy)
        until(lambda: self.LIMIT.format(10) in self.create(cluster, 11))
        assert not self.change(cluster, budget={"perHour": "7"})
        assert not self.change(cluster, priority=500)
        assert self.LIMIT.format(10) in self.change(cluster, priority=501)
        assert not self.change(cluster, priority=10)
        assert self.LIMIT.format(10) in self.change(cluster, priority=11)


def ranked(name: str, priority: int) -> dict[str, Any]:
    document = a_pipeline(name)
    document["spec"]["priority"] = priority
    return document


NUMBERS = itertools.count()
NO_RIGHT = "target: you must have the right to patch the scale of each target"
PIPELINES = ("sluice.dev", "v1alpha1", "default", "speechpipelines")


def pipelines(api: client.ApiClient) -> client.CustomObjectsApi:
    return client.CustomObjectsApi(api)


def a_pipeline(name: str, *, stages: int = 1) -> dict[str, Any]:
    """Return a pipeline of `stages` stages; the target of the first is `vad`, those of the others `vad-1`, ..."""
    document = yaml.safe_load((Path(__file__).parents[4] / "tests" / "contract" / "live-captions.yaml").read_text())
    document["metadata"] = {"name": name, "namespace": "default"}
    first = document["spec"]["stages"][0]
    document["spec"]["stages"] = []
    for number in range(stages):
        called = "vad" if number == 0 else f"vad-{number}"
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": called}
        placements = [{**first["placements"][0], "target": target}]
        document["spec"]["stages"].append({**first, "name": called, "placements": placements})
    return dict(document)


def with_variants(name: str, *targets: str) -> dict[str, Any]:
    """Return a pipeline of one stage, with a variant for each of `targets`, Deployments of the variants' names."""
    document = a_pipeline(name)
    (placement,) = document["spec"]["stages"][0]["placements"]
    own = {field: placement.pop(field) for field in ("target", "serviceTime", "batching") if field in placement}
    placement["replicas"] = {"max": 4}
    placement["variants"] = [{**own, "name": each, "target": {**own["target"], "name": each}} for each in targets]
    return document


def apply(api: client.ApiClient, document: dict[str, Any]) -> None:
    pipelines(api).create_namespaced_custom_object(*PIPELINES, document)


def applied(api: client.ApiClient, document: dict[str, Any]) -> bool:
    return not refused(lambda: apply(api, document))


def refusal(api: client.ApiClient, name: str, *, stages: int = 1) -> str:
    return refused(lambda: apply(api, a_pipeline(name, stages=stages)))


def refused(request: Callable[[], object]) -> str:
    """Return why the server forbids it, nothing where it does not."""
    try:
        request()
    except client.ApiException as error:
        if error.status != 403:
            raise
        return str(error.body)
    return ""


@contextmanager
def a_user(cluster: Cluster, name: str, *rules: dict[str, Any]) -> Iterator[client.ApiClient]:
    """Yield the client of somebody who may write pipelines in one namespace, and what `rules` say."""
    cluster.core.create_namespaced_service_account("default", {"metadata": {"name": name}})
    write = {"apiGroups": ["sluice.dev"], "resources": ["speechpipelines"], "verbs": ["create", "patch", "update"]}
    rbac = client.RbacAuthorizationV1Api(cluster.admin)
    rbac.create_namespaced_role("default", {"metadata": {"name": name}, "rules": [write, *rules]})
    rbac.create_namespaced_role_binding(
        "default",
        {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        },
    )
    path = cluster._folder / f"{name}.kubeconfig"
    cluster._control_plane.service_account_kubeconfig("default", name, path)
    with config.new_client_from_config(str(path)) as api:
        yield api


def readable(operator: client.ApiClient) -> bool:
    try:
        client.AppsV1Api(operator).read_namespaced_deployment("captions", "default")
    except client.ApiException as error:
        if error.status != 403:
            raise
        return False
    return True


def client_of(cluster: Cluster) -> client.ApiClient:
    """Return a plain client with the token of the holder's pod."""
    return config.new_client_from_config(str(cluster._folder / f"{HOLDER}.kubeconfig"))


def grant(cluster: Cluster, rules: list[dict[str, Any]]) -> None:
    """Give the operator's account more than its manifest does."""
    rbac = client.RbacAuthorizationV1Api(cluster.admin)
    role = rbac.create_cluster_role({"metadata": {"generateName": "more-"}, "rules": rules})
    rbac.create_cluster_role_binding(
        {
            "metadata": {"name": role.metadata.name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role.metadata.name},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SYSTEM}],
        }
    )


def a_kind_with_a_scale() -> dict[str, Any]:
    integer = {"type": "integer"}
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"replicas": integer}},
            "status": {"type": "object", "properties": {"replicas": integer, "selector": {"type": "string"}}},
        },
    }
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": scale},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "dials.lab.sluice.dev"},
        "spec": {
            "group": "lab.sluice.dev",
            "scope": "Namespaced",
            "names": {"plural": "dials", "kind": "Dial"},
            "versions": [version],
        },
    }
