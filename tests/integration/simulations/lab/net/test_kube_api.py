"""The lab's API client against the real API server, through connections that break."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from kubernetes import client

from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.net.kube_api import KubeApi, KubeApiError

pytestmark = pytest.mark.lab


class Cable:
    """A TCP forwarder to the API server that can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: set[asyncio.StreamWriter] = set()

    async def plug(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends |= {writer, server_writer}
        await asyncio.gather(self._carry(reader, server_writer), self._carry(server_reader, writer))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
        except (ConnectionError, ssl.SSLError):
            pass
        sink.close()

    def cut(self) -> None:
        for writer in self._ends:
            writer.transport.abort()
        self._ends.clear()


@asynccontextmanager
async def through_a_cable(control_plane: ControlPlane, folder: Path) -> AsyncIterator[tuple[KubeApi, Cable]]:
    kubeconfig = yaml.safe_load(control_plane.kubeconfig.read_text())
    cluster = kubeconfig["clusters"][0]["cluster"]
    cable = Cable(int(cluster["server"].rpartition(":")[2]))
    forwarder = await asyncio.start_server(cable.plug, "127.0.0.1", 0)
    cluster["server"] = f"https://127.0.0.1:{forwarder.sockets[0].getsockname()[1]}"
    path = folder / "cable.kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    async with asyncio.timeout(30), KubeApi(path) as api:
        yield api, cable
    forwarder.close()
    cable.cut()
    await forwarder.wait_closed()


def test_a_watch_misses_nothing_that_happens_while_its_connection_is_down(
    control_plane: ControlPlane, admin: client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    core = client.CoreV1Api(admin)
    path = f"/api/v1/namespaces/{namespace}/configmaps"

    def make(name: str) -> None:
        core.create_namespaced_config_map(namespace, {"metadata": {"name": name, "labels": {"mine": "yes"}}})

    async def run() -> None:
        async with through_a_cable(control_plane, tmp_path) as (api, cable):
            events = api.watch(path, {"labelSelector": "mine=yes"})

            async def following(count: int) -> set[tuple[str, str]]:
                return {
                    (event.type, event.object["metadata"]["name"])
                    for event in [await anext(events) for _ in range(count)]
                }

            make("first")
            assert await following(1) == {("ADDED", "first")}
            make("second")
            assert await following(1) == {("ADDED", "second")}
            core.patch_namespaced_config_map("first", namespace, {"data": {"k": "v"}})
            assert await following(1) == {("MODIFIED", "first")}
            cable.cut()
            core.delete_namespaced_config_map("first", namespace)
            make("third")
            assert await following(3) == {("DELETED", "first"), ("ADDED", "second"), ("ADDED", "third")}
            core.delete_namespaced_config_map("third", namespace)
            assert await following(1) == {("DELETED", "third")}
            await events.aclose()

    asyncio.run(run())


def test_a_request_survives_a_broken_connection_and_a_refusal_names_status_and_reason(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with through_a_cable(control_plane, tmp_path) as (api, cable):
            path = f"/api/v1/namespaces/{namespace}"
            assert (await api.get(path))["metadata"]["name"] == namespace
            cable.cut()
            assert (await api.get(path))["metadata"]["name"] == namespace
            with pytest.raises(KubeApiError, match='"absent" not found') as refused:
                await api.get(f"{path}/configmaps/absent")
            assert refused.value.status == 404

    asyncio.run(run())


def test_a_token_is_created_and_what_exists_is_refused(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with through_a_cable(control_plane, tmp_path) as (api, _):
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
            await api.create(path, {"metadata": {"name": "reader"}})
            answer = await api.create(f"{path}/reader/token", {"spec": {"expirationSeconds": 600}})
            assert answer["status"]["token"].count(".") == 2
            with pytest.raises(KubeApiError) as refused:
                await api.create(path, {"metadata": {"name": "reader"}})
            assert refused.value.status == 409

    asyncio.run(run())


def test_a_kubeconfig_without_what_the_lab_writes_is_refused(control_plane: ControlPlane, tmp_path: Path) -> None:
    kubeconfig = yaml.safe_load(control_plane.kubeconfig.read_text())
    del kubeconfig["users"][0]["user"]["token"]
    path = tmp_path / "no-token"
    path.write_text(yaml.safe_dump(kubeconfig))
    with pytest.raises(ValueError, match="'token': is missing"):
        KubeApi(path)
