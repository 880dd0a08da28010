"""A host whose pods are run by a kubelet and containerd. `python -m kubelet_host` gets what it needs.

It must be alone in its network namespace, with the servers of the lab:

* The addresses of Services and of the node are local there. `service_proxy` listens on them, and needs neither packet
  filter nor forwarding. Pods are on a bridge, and the bridge is their only way out.
* Kubelet and containerd run in a mount and a process namespace of their own (`node.sh`). All that they start and mount
  goes with it, however the tests end. What else they leave is in the folder of the host, and control groups.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from images import CannotBuild, install, tag
from kubernetes import client, config
from pod_host import HOST, PodHost
from typing_extensions import override
from waiting import until

from simulations.lab.host.binaries import BuildError, NodePrograms, ensure_node
from simulations.lab.host.processes import LOOPBACK

PACKAGES = {
    "bash": Path("/bin/bash"),
    "catatonit": Path("/usr/bin/catatonit"),
    "containernetworking-plugins": Path("/usr/lib/cni/bridge"),
    "iproute2": Path("/bin/ip"),
    "runc": Path("/usr/sbin/runc"),
}
"""The packages of Debian, each with a file that it has."""

_NODE_ADDRESS = "10.89.0.1"
_PODS = "10.88.0.0/24"
_SERVICES = "10.0.0.0/24"  # as the control plane has it
_DNS = "10.0.0.10"  # Kubernetes gives the first 16 addresses to Services that ask for them, and none does
_PAUSE = "localhost/sluice-pause:dev"
_GROUP = "sluice-lab-"
_GROUPS = Path("/sys/fs/cgroup")
_READY_S = 60.0


class KubeletHost(PodHost):
    """A kubelet, with containerd and runc."""

    def __init__(self, programs: NodePrograms, folder: Path, kubeconfig: Path, outside: Mapping[str, str]) -> None:
        """As `PodHost`, with the programs of a node."""
        super().__init__(folder, kubeconfig, outside)
        self._programs = programs
        self._socket = folder / "containerd.sock"

    @override
    def _start(self) -> None:
        if [name for _, name in socket.if_nameindex()] != ["lo"]:
            raise RuntimeError("pods of a kubelet need a network namespace without devices; use `make test-kubelet`")
        _remove_groups()
        self._parts.callback(_remove_groups)
        _make_groups()
        _run("ip", "address", "add", f"{_NODE_ADDRESS}/32", "dev", "lo")
        _run("ip", "route", "add", "local", _SERVICES, "dev", "lo")
        self._start_module("service_proxy", ["--dns", _DNS])
        self._write_settings()
        namespaces = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        flags = {
            "kubeconfig": self._kubeconfig,
            "hostname-override": HOST,
            "node-ip": _NODE_ADDRESS,
            "root-dir": self._folder / "kubelet",
            "cert-dir": self._folder / "kubelet" / "pki",
        }
        script = (PACKAGES["bash"], Path(__file__).with_name("node.sh"), self._folder)
        command: list[str | Path] = [shutil.which("unshare") or "unshare", *namespaces, *script]
        command += [self._programs.containerd, self._programs.kubelet]
        node = self._processes.start("node", [*command, *(f"--{flag}={value}" for flag, value in flags.items())])
        node.wait_until(self._socket.exists, _READY_S)
        self._import_images()
        with config.new_client_from_config(str(self._kubeconfig)) as admin:
            node.wait_until(partial(_is_ready, client.CoreV1Api(admin)), _READY_S)

    @override
    def process(self, pod: Mapping[str, Any]) -> int:
        (status,) = pod["status"]["containerStatuses"]
        container = status["containerID"].removeprefix("containerd://")
        # In the process namespace of the node it has another number, which containerd knows.
        return min(int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cgroup") if _is_in(container, path))

    def _write_settings(self) -> None:
        (self._folder / "cni").mkdir(parents=True)
        (self._folder / "cni" / "pods.conflist").write_text(json.dumps(_network()))
        (self._folder / "containerd.toml").write_text(self._containerd())
        (self._folder / "resolv.conf").touch()  # pods know no names of this machine's network
        (self._folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet()))

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "address": LOOPBACK,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "clusterDNS": [_DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self._folder / "resolv.conf"),
            "podLogsDir": str(self._folder / "pods"),
            "volumePluginDir": str(self._folder / "kubelet" / "volume-plugins"),
            "seccompDefault": True,
            # All control groups are below one that goes with the tests. Hosts may still have those of version 1.
            "cgroupRoot": f"/{_own_group()}",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            # What the machine has else to do is no reason to evict pods, nor to delete their images.
            "failSwapOn": False,
            "evictionHard": {"memory.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            # Root may lack the right to protect processes from the out-of-memory killer.
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
        }

    def _containerd(self) -> str:
        return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{self._socket}"

[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{_PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{PACKAGES["runc"]}"

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{PACKAGES["containernetworking-plugins"].parent}"]
conf_dir = "{self._folder}/cni"
"""

    def _import_images(self) -> None:
        """Import the operator's image, and one for the first container of a pod, which only holds its namespaces."""
        empty = _run("buildah", "from", "scratch")
        _run("buildah", "copy", "--quiet", empty, str(PACKAGES["catatonit"]), "/catatonit")
        _run("buildah", "config", "--entrypoint", '["/catatonit", "-P"]', empty)
        archives = {name: self._folder / f"{name}.tar" for name in ("pause", "operator")}
        _run("buildah", "commit", "--quiet", "--rm", empty, f"docker-archive:{archives['pause']}:{_PAUSE}")
        _run("buildah", "push", "--quiet", tag("operator"), f"docker-archive:{archives['operator']}:{tag('operator')}")
        for archive in archives.values():
            containerd = ("--address", str(self._socket), "--namespace", "k8s.io")
            _run(str(self._programs.ctr), *containerd, "images", "import", str(archive))
            archive.unlink()


def _network() -> dict[str, object]:
    address_management = {
        "type": "host-local",
        "ranges": [[{"subnet": _PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipam": address_management}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def _is_ready(core: client.CoreV1Api) -> bool:
    found = core.list_node(field_selector=f"metadata.name={HOST}").items
    return any((each.type, each.status) == ("Ready", "True") for node in found for each in node.status.conditions or ())


def _is_in(container: str, process: Path) -> bool:
    """Whether the process whose control groups are in the file `process` is one of `container`."""
    try:
        return any(line.endswith(f"/{container}") for line in process.read_text().splitlines())
    except OSError:
        return False  # it has ended


def _own_group() -> str:
    return f"{_GROUP}{os.getpid()}"


def _make_groups() -> None:
    """Make the control group of this session, in each hierarchy of version 1 or in the one of version 2."""
    if (controllers := _GROUPS / "cgroup.controllers").exists():
        wanted = " ".join(f"+{each}" for each in controllers.read_text().split())
        (_GROUPS / "cgroup.subtree_control").write_text(wanted)
    for hierarchy in (_GROUPS, *_GROUPS.iterdir()):
        if (hierarchy / "cgroup.procs").exists() and (hierarchy == _GROUPS or hierarchy.is_mount()):
            (hierarchy / _own_group()).mkdir()


def _remove_groups() -> None:
    """Remove the control groups of this session, and of sessions that were killed."""
    for group in (*_GROUPS.glob(f"{_GROUP}*"), *_GROUPS.glob(f"*/{_GROUP}*")):
        process = group.name.removeprefix(_GROUP)
        if int(process) == os.getpid() or not Path("/proc", process).exists():
            until(partial(_is_removed, group))


def _is_removed(group: Path) -> bool:
    try:
        for folder, _, _ in os.walk(group, topdown=False):
            Path(folder).rmdir()
    except OSError:
        return False  # a process in it has not quite ended
    return True


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout.strip()


def main() -> None:
    """Install missing packages, and build the programs, unless they are there."""
    missing = [package for package, file in PACKAGES.items() if not file.exists()]
    try:
        if missing:
            install(missing)
        ensure_node(lambda line: print(line, file=sys.stderr, flush=True))
    except (BuildError, CannotBuild) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
