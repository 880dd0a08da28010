"""A real Kubernetes control plane on loopback: etcd, API server, controller-manager and scheduler, without kubelets."""

import contextlib
import http.client
import json
import secrets
import shutil
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import yaml
from kubernetes import client, config
from typing_extensions import override

from simulations.lab.cluster.nodes import CONFLICT, NOT_FOUND, tolerated
from simulations.lab.host.binaries import Binaries
from simulations.lab.host.processes import LOOPBACK, Child, Service, free_ports

_READY_S = 60.0
_READ_S = 5.0
_QPS = 1000  # with the default of 20 requests/s, the controllers would be the lab's bottleneck
_CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "horizontal-pod-autoscaler-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "disruption-controller",
)
# It taints every node until the node-lifecycle controller, which does not run here, reports it Ready.
_NO_ADMISSION = ("TaintNodesByCondition",)
# Only kubelets use volumes with tokens and the cluster's CA certificate. Without kubelets, ServiceAccount would only
# delay pods.
_NO_ADMISSION_WITHOUT_TOKENS = (*_NO_ADMISSION, "ServiceAccount")
_CONTROLLERS_OF_TOKENS = (*_CONTROLLERS, "root-ca-certificate-publisher-controller")
_PACKED = ("cpu", "nvidia.com/gpu", "aws.amazon.com/neuron")
_ISSUER = "https://kubernetes.default.svc"
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Request",
            "verbs": ["create", "update", "patch", "delete"],
            "resources": [
                {"group": "apps", "resources": ["deployments/scale", "statefulsets/scale"]},
                {"group": "coordination.k8s.io", "resources": ["leases"]},
            ],
        },
        {
            "level": "Metadata",
            "verbs": ["update", "patch"],
            "resources": [
                {
                    "group": "sluice.dev",
                    "resources": ["speechpipelines/status", "computepools/status", "computebudgets/status"],
                }
            ],
        },
        {"level": "None"},
    ],
}


class ControlPlane(Service):
    """A Kubernetes control plane with its data in one folder.

    `start` returns when the API server is ready and the controllers have begun to act. `url` is the address of the API
    server, `kubeconfig` the file with the administrator's access.
    """

    def __init__(
        self,
        folder: Path,
        binaries: Binaries,
        *,
        audit: bool = False,
        tokens: bool = False,
        flags: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
    ) -> None:
        """Set the folder and the programs; nothing runs before `start()`.

        Args:
            folder: for keys, data, logs and kubeconfigs; created if it is missing. `start()` deletes the data of an
                earlier cluster.
            binaries: the lab's programs.
            audit: whether the API server records every write of a scale, of a status of Sluice's resources and of a
                Lease in `audit_log`, with user, request and response status.
            tokens: whether pods get the volume with the token of their ServiceAccount and the CA certificate of the
                cluster, which a kubelet mounts.
            flags: further flags of the programs kube-apiserver and kube-controller-manager.
        """
        self._folder = folder.resolve()
        super().__init__(self._folder / "logs")
        self._binaries = binaries
        self.kubeconfig = self._folder / "admin.kubeconfig"
        self.certificate_authority = self._folder / "pki" / "apiserver.crt"
        self.audit_log = self._folder / "audit.log"
        self._audit = audit
        self._tokens = tokens
        self._flags = flags
        self._api_server: Child
        self._start_again: Callable[[], Child]
        self.url = ""

    @override
    def _start(self) -> None:
        shutil.rmtree(self._folder / "etcd", ignore_errors=True)
        client_port, peer_port, api_port = free_ports(3)
        self.url = f"https://{LOOPBACK}:{api_port}"
        token = secrets.token_hex(16)
        tokens = self._folder / "tokens.csv"
        _write_secret(tokens, f'{token},admin,admin,"system:masters"\n')
        self._start_etcd(f"http://{LOOPBACK}:{client_port}", f"http://{LOOPBACK}:{peer_port}")

        def start_api_server() -> Child:
            child = self._start_api_server(f"http://{LOOPBACK}:{client_port}", api_port, tokens)
            child.wait_until(lambda: self._is_ready(api_port, token), _READY_S)
            return child

        self._start_again = start_api_server
        self._api_server = start_api_server()
        self._write_kubeconfig(self.kubeconfig, user="admin", token=token)
        manager = self._start_controller_manager()
        self._start_scheduler()
        with config.new_client_from_config(str(self.kubeconfig)) as admin:
            manager.wait_until(lambda: _default_account_exists(admin), _READY_S)

    def restart_api_server(self) -> None:
        """Kill the API server and start it again at the same address.

        The new server does not have the history of changes from which watches resume.

        Raises:
            ProcessError: the new server was not ready in time.
        """
        self._processes.kill(self._api_server)
        self._api_server = self._start_again()

    def service_account_kubeconfig(
        self,
        namespace: str,
        name: str,
        path: Path,
        *,
        valid_s: int = 30 * 86_400,
        pod: str | None = None,
        server: str | None = None,
    ) -> None:
        """Write a kubeconfig for an existing ServiceAccount to `path`, with a token that is valid for `valid_s`.

        The token is not renewed, unlike one that a kubelet mounts. The default lifetime is longer than a lab runs.

        Args:
            namespace: the namespace of the ServiceAccount.
            name: the name of the ServiceAccount.
            path: the file to write.
            valid_s: lifetime of the token in seconds.
            pod: the pod to bind the token to, as a kubelet does; created if it is missing, and never scheduled.
            server: URL of a proxy to reach the API server through; None for the API server itself.

        Raises:
            kubernetes.client.ApiException: status 404 when there is no such ServiceAccount.
        """
        with config.new_client_from_config(str(self.kubeconfig)) as admin:
            bound = None if pod is None else _bound_to(client.CoreV1Api(admin), namespace, pod, name)
            answer = client.CoreV1Api(admin).create_namespaced_service_account_token(
                name,
                namespace,
                client.AuthenticationV1TokenRequest(
                    spec=client.V1TokenRequestSpec(
                        audiences=[_ISSUER], expiration_seconds=valid_s, bound_object_ref=bound
                    )
                ),
                _request_timeout=_READ_S,
            )
        self._write_kubeconfig(path, user=f"{namespace}-{name}", token=answer.status.token, server=server)

    def _start_etcd(self, client_url: str, peer_url: str) -> None:
        command = _command(
            self._binaries.etcd,
            {
                "name": "lab",
                "data-dir": self._folder / "etcd",
                "listen-client-urls": client_url,
                "advertise-client-urls": client_url,
                "listen-peer-urls": peer_url,
                "initial-advertise-peer-urls": peer_url,
                "initial-cluster": f"lab={peer_url}",
                "unsafe-no-fsync": "true",  # a lab need not survive a crash of the machine
                "log-level": "error",
            },
        )
        self._processes.start("etcd", command)

    def _start_api_server(self, etcd_url: str, port: int, tokens: Path) -> Child:
        pki = self.certificate_authority.parent
        command = _command(
            self._binaries.kube_apiserver,
            {
                "etcd-servers": etcd_url,
                "cert-dir": pki,  # it creates its own certificate there, and tokens are signed with the same key
                "bind-address": LOOPBACK,
                "secure-port": port,
                "advertise-address": LOOPBACK,
                "endpoint-reconciler-type": "none",  # a loopback address is not a valid endpoint
                "service-cluster-ip-range": "10.0.0.0/24",
                "service-account-issuer": _ISSUER,
                "service-account-key-file": pki / "apiserver.key",
                "service-account-signing-key-file": pki / "apiserver.key",
                "authorization-mode": "RBAC",
                "token-auth-file": tokens,
                "allow-privileged": "true",
                "disable-admission-plugins": ",".join(_NO_ADMISSION if self._tokens else _NO_ADMISSION_WITHOUT_TOKENS),
                **(self._audit_flags() if self._audit else {}),
                **self._flags.get("kube-apiserver", {}),
            },
        )
        return self._processes.start("kube-apiserver", command)

    def _audit_flags(self) -> dict[str, object]:
        self.audit_log.unlink(missing_ok=True)
        policy = self._folder / "audit.yaml"
        policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
        return {"audit-policy-file": policy, "audit-log-path": self.audit_log, "audit-log-mode": "blocking"}

    def _start_controller_manager(self) -> Child:
        command = _command(
            self._binaries.kube_controller_manager,
            {
                "kubeconfig": self.kubeconfig,
                "controllers": ",".join(_CONTROLLERS_OF_TOKENS if self._tokens else _CONTROLLERS),
                **({"root-ca-file": self.certificate_authority} if self._tokens else {}),
                "leader-elect": "false",
                "secure-port": 0,
                "kube-api-qps": _QPS,
                "kube-api-burst": _QPS,
                **self._flags.get("kube-controller-manager", {}),
            },
        )
        return self._processes.start("kube-controller-manager", command)

    def _start_scheduler(self) -> None:
        settings = self._folder / "scheduler.yaml"
        settings.write_text(yaml.safe_dump(_scheduler_settings(self.kubeconfig)))
        command = _command(self._binaries.kube_scheduler, {"config": settings, "secure-port": 0})
        self._processes.start("kube-scheduler", command)

    def _is_ready(self, port: int, token: str) -> bool:
        try:
            trust = ssl.create_default_context(cafile=str(self.certificate_authority))
            connection = http.client.HTTPSConnection(LOOPBACK, port, context=trust, timeout=_READ_S)
            with contextlib.closing(connection):
                connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {token}"})
                return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):  # no certificate or no listener yet
            return False

    def _write_kubeconfig(self, path: Path, *, user: str, token: str, server: str | None = None) -> None:
        cluster = {"server": server or self.url, "certificate-authority": str(self.certificate_authority)}
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "current-context": "lab",
        }
        _write_secret(path, json.dumps(kubeconfig, indent=2))


def _bound_to(core: client.CoreV1Api, namespace: str, pod: str, account: str) -> client.V1BoundObjectReference:
    """Return the reference that binds a token to `pod`, after creating the pod if it is missing."""
    manifest = {
        "metadata": {"name": pod},
        "spec": {
            "serviceAccountName": account,
            "schedulerName": "none",
            "containers": [{"name": "operator", "image": "none"}],
        },
    }
    with tolerated(CONFLICT):
        core.create_namespaced_pod(namespace, manifest, _request_timeout=_READ_S)
    found = core.read_namespaced_pod(pod, namespace, _request_timeout=_READ_S)
    return client.V1BoundObjectReference(api_version="v1", kind="Pod", name=pod, uid=found.metadata.uid)


def _command(program: Path, flags: Mapping[str, object]) -> list[str | Path]:
    return [program, *(f"--{name}={value}" for name, value in flags.items())]


def _scheduler_settings(kubeconfig: Path) -> dict[str, object]:
    """Return a KubeSchedulerConfiguration that fills one node before it uses the next."""
    scoring = {"type": "MostAllocated", "resources": [{"name": name, "weight": 1} for name in _PACKED]}
    arguments = {
        "NodeResourcesFit": {"scoringStrategy": scoring},
        "PodTopologySpread": {"defaultingType": "List"},  # an empty list: the built-in defaults would spread replicas
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": _QPS, "burst": _QPS},
        "profiles": [
            {
                "schedulerName": "default-scheduler",
                "plugins": {"score": {"disabled": [{"name": "NodeResourcesBalancedAllocation"}]}},
                "pluginConfig": [{"name": name, "args": values} for name, values in arguments.items()],
            }
        ],
    }


def _default_account_exists(admin: client.ApiClient) -> bool:
    try:
        client.CoreV1Api(admin).read_namespaced_service_account("default", "default", _request_timeout=_READ_S)
    except client.ApiException as error:
        if error.status == NOT_FOUND:
            return False
        raise
    return True


def _write_secret(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(content)
