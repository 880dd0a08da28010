"""A host whose pods run in containers of podman: the harness's own node agent, over loopback, without a kubelet."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubernetes import client, config
from pod_host import HOST, PodHost
from podman import SESSION
from typing_extensions import override

from simulations.lab.cluster import nodes


class PodmanHost(PodHost):
    """The agent `pod_agent` runs the pods."""

    @override
    def _start(self) -> None:
        _remove_containers()
        self._parts.callback(_remove_containers)
        (node,) = nodes.node_manifests(nodes.PoolNodes(name="host", device="CPU", node_selector={}, instances=1))
        node["metadata"] |= {"name": HOST, "labels": {"kubernetes.io/hostname": HOST}}
        with config.new_client_from_config(str(self._kubeconfig)) as admin:
            client.CoreV1Api(admin).create_node(node)
        self._start_module("pod_agent", ["--node", HOST, "--folder", self._folder / "pods"])

    @override
    def process(self, pod: Mapping[str, Any]) -> int:
        container = _podman("ps", "--quiet", "--filter", f"label=io.kubernetes.pod.name={pod['metadata']['name']}")
        return int(_podman("inspect", "--format", "{{.State.Pid}}", container))


def _remove_containers() -> None:
    """Remove the containers of this session, and of sessions that were killed."""
    shown = f'{{{{.ID}}}} {{{{index .Labels "{SESSION}"}}}}'
    listed = _podman("ps", "--all", "--filter", f"label={SESSION}", "--format", shown).splitlines()
    for container, process in map(str.split, listed):
        if int(process) == os.getpid() or not Path("/proc", process).exists():
            _podman("rm", "--force", "--time", "0", container)


def _podman(*arguments: str) -> str:
    """Return the output of `podman ARGUMENTS`."""
    return subprocess.run(["podman", *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
