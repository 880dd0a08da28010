"""The life of one pod.

Its container is started, probed, started again when it ends, and stopped within the grace period.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

import podman
from pod_network import PodNetwork
from pod_services import Services
from pod_status import PodStatus
from pod_volumes import FIELDS, make_volumes
from probes import Probes

from simulations.lab.net.kube_api import KubeApi, KubeApiError

Json = Mapping[str, Any]
_GONE = {404, 409}  # 409: another pod has the same name now
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10, 300


class PodLife:
    """Runs a pod with one container until its deletion. All of its files are in one folder."""

    def __init__(self, api: KubeApi, pod: Json, address: str, folder: Path, services: Services) -> None:
        self.leaving = asyncio.Event()
        self.grace_s: float = pod["spec"].get("terminationGracePeriodSeconds", 30)
        self._api = api
        self._pod = pod
        self._container: Json = pod["spec"]["containers"][0]
        self._status = PodStatus(address=address)
        self._folder = folder
        self._services = services
        self._path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

    async def run(self) -> None:
        """Run the pod from its start to its deletion.

        Raises:
            ValueError: the pod needs something that this agent does not have.
        """
        if len(self._pod["spec"]["containers"]) > 1 or self._pod["spec"].get("initContainers"):
            raise ValueError(f"{self._path}: runs pods with one container only")
        try:
            await self._run_until_left()
        except KubeApiError as error:
            if error.status not in _GONE:
                raise
            await self.leaving.wait()  # its ServiceAccount, for example, has been deleted before it
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self._pod["metadata"]["uid"]}}
        await _unless_gone(self._api.delete(self._path, options))

    async def _run_until_left(self) -> None:
        await self._report()
        self._folder.mkdir(parents=True)
        with contextlib.closing(PodNetwork()) as network:
            own = {port["containerPort"] for port in self._container.get("ports", ())}
            for address, target in (await self._services.routes()).items():
                # The addresses of Services are in its own namespace: a process could not listen on all addresses.
                if address[1] not in own:
                    await network.reaches(address, target)
            for port in own:
                await network.is_reached((self._status.address, port))
            mounts = await self._mounts()
            while not self.leaving.is_set():
                await self._run_container(network, mounts)

    async def _run_container(self, network: PodNetwork, mounts: Sequence[str]) -> None:
        """Run the container once, and wait until it must be started again."""
        metadata, number = self._pod["metadata"], self._status.restarts
        name = f"{metadata['name']}-{metadata['uid'][:8]}-{number}"
        log = ("--log-driver", "k8s-file", "--log-opt", f"path={self._folder / f'{number}.log'}")
        flags = ("--network", f"ns:{network.path}", *log, *mounts)
        try:
            await podman.start(name, self._pod, flags, self._environment())
            self._status.running()
            await self._report()
            code = await self._watch(name)
        finally:
            await podman.podman("rm", "--force", "--ignore", "--time", "0", name)
        policy = self._pod["spec"].get("restartPolicy", "Always")
        again = policy == "Always" or (policy == "OnFailure" and code != 0)
        self._status.ended(code, again=again)
        await self._report()
        # The first time at once, then after a pause that doubles, as by a kubelet.
        pause_s = 0 if number == 0 else min(_FIRST_PAUSE_S * 2 ** (number - 1), _LONGEST_PAUSE_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.leaving.wait(), pause_s if again else None)

    async def _mounts(self) -> list[str]:
        hosts = self._folder / "hosts"
        addresses = await self._services.addresses()
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {host}\n" for host, ip in addresses.items()))
        volumes = await make_volumes(self._api, self._pod, self._folder / "volumes")
        flags = ["--volume", f"{hosts}:/etc/hosts:ro"]
        for mount in self._container.get("volumeMounts", ()):
            mode = "ro" if mount.get("readOnly") else "rw"
            flags += ["--volume", f"{volumes[mount['name']]}:{mount['mountPath']}:{mode}"]
        return flags

    async def _watch(self, name: str) -> int:
        """Return the exit code of the running container, which ends by itself, by its probes or with its pod."""
        ended = asyncio.create_task(podman.podman("wait", "--interval", "100ms", name))
        others = {asyncio.create_task(self._probe()), asyncio.create_task(self.leaving.wait())}
        try:
            await asyncio.wait({ended, *others}, return_when=asyncio.FIRST_COMPLETED)
            for other in others:
                if other.done():
                    other.result()  # a failure of the agent is not one of the container
            if not ended.done():
                if self._status.ready:
                    self._status.ready = False
                    await self._report()
                await podman.podman("stop", "--time", str(int(self.grace_s)), name)
            return int(await ended)
        finally:
            for task in (ended, *others):
                task.cancel()
            await asyncio.gather(ended, *others, return_exceptions=True)

    async def _probe(self) -> None:
        """Report readiness; return when the container must be started again."""
        probes = Probes(self._container, self._status.address)
        if not await probes.started():
            return
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow_readiness(probes))
            await probes.dead()
            following.cancel()

    async def _follow_readiness(self, probes: Probes) -> None:
        async for ready in probes.readiness():
            if ready != self._status.ready:
                self._status.ready = ready
                await self._report()

    def _environment(self) -> dict[str, str]:
        # A kubelet sets the address of the API server even without links to Services.
        found = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        for variable in self._container.get("env", ()):
            if "valueFrom" in variable:
                found[variable["name"]] = FIELDS[variable["valueFrom"]["fieldRef"]["fieldPath"]](self._pod)
            else:
                found[variable["name"]] = variable.get("value", "")
        return found

    async def _report(self) -> None:
        await _unless_gone(self._api.patch(f"{self._path}/status", self._status.patch(self._pod)))


async def _unless_gone(call: Awaitable[object]) -> None:
    try:
        await call
    except KubeApiError as error:
        if error.status not in _GONE:
            raise
