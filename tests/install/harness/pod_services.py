"""The Services of the cluster, in place of its DNS and of the proxies on its nodes."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pod_network import Address

from simulations.lab.net.kube_api import KubeApi

Json = Mapping[str, Any]


class Services:
    """Finds the addresses behind Services."""

    def __init__(self, api: KubeApi, outside: Mapping[str, Address]) -> None:
        """`outside` has the addresses on the host of Services without pods, by `namespace/name`."""
        self._api = api
        self._outside = outside

    async def addresses(self) -> dict[str, str]:
        """Return the address of each Service by its names."""
        return {
            f"{name}.{namespace}.svc{suffix}": service["spec"]["clusterIP"]
            for service in await self._all()
            for namespace, name in [(service["metadata"]["namespace"], service["metadata"]["name"])]
            for suffix in ("", ".cluster.local")
        }

    async def routes(self) -> dict[Address, Callable[[], Awaitable[Address]]]:
        """Return what finds the address on the host for each port of each Service."""
        return {
            (service["spec"]["clusterIP"], port["port"]): self._target(service, port)
            for service in await self._all()
            for port in service["spec"]["ports"]
        }

    async def _all(self) -> list[Json]:
        services = (await self._api.get("/api/v1/services"))["items"]
        return [each for each in services if each["spec"].get("clusterIP", "None") != "None"]

    def _target(self, service: Json, port: Json) -> Callable[[], Awaitable[Address]]:
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]

        async def find() -> Address:
            if outside := self._outside.get(f"{namespace}/{name}"):
                return outside
            selector = ",".join(f"{key}={value}" for key, value in service["spec"].get("selector", {}).items())
            pods = await self._api.get(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": selector})
            for pod in pods["items"]:
                if is_ready(pod):
                    ports = {each.get("name"): each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}
                    wanted = port.get("targetPort", port["port"])
                    return str(pod["status"]["podIP"]), int(ports.get(wanted) or wanted)
            raise ConnectionRefusedError(f"Service {namespace}/{name} has no ready pod")

        return find


def outside_addresses(texts: Sequence[str]) -> dict[str, Address]:
    """Return the addresses in `NAMESPACE/NAME=HOST:PORT`, by `NAMESPACE/NAME`."""
    found: dict[str, Address] = {}
    for text in texts:
        service, _, address = text.partition("=")
        host, _, port = address.rpartition(":")
        found[service] = (host, int(port))
    return found


def is_ready(pod: Json) -> bool:
    """Whether a pod has the condition Ready."""
    conditions = pod["status"].get("conditions", ())
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
