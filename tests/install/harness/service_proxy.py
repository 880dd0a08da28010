"""Services and their names on the node of a kubelet: `python -m service_proxy --kubeconfig FILE --dns ADDRESS …`.

It takes the place of kube-proxy and of the cluster's DNS server. Every address of a Service is local to the node; a
relay listens there. It runs in the node's network namespace, from which the servers of the lab are reached.
"""

import argparse
import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import cast

from pod_network import Address, Stream, relay
from pod_services import Services, outside_addresses
from typing_extensions import override

from simulations.lab.net.kube_api import KubeApi

_A, _NO_SUCH_NAME = 1, 3
_ANSWER_OF_AUTHORITY = 0x8580  # a response, authoritative; recursion was desired and is available
_TTL_S = 1


class Proxy:
    """Relays at the addresses of Services, as they are at each `follow`."""

    def __init__(self) -> None:
        self._targets: dict[Address, Callable[[], Awaitable[Address]]] = {}
        self._servers: dict[Address, asyncio.Server] = {}

    async def follow(self, targets: Mapping[Address, Callable[[], Awaitable[Address]]]) -> None:
        """Listen at the addresses in `targets`, which find the server of each connection, and at no others."""
        self._targets = dict(targets)
        for address in self._servers.keys() - targets.keys():
            self._servers.pop(address).close()
        for address in targets.keys() - self._servers.keys():
            self._servers[address] = await self._listen(address)

    async def _listen(self, address: Address) -> asyncio.Server:
        async def dial() -> Stream:
            return await asyncio.open_connection(*await self._targets[address]())

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await relay((reader, writer), dial)

        return await asyncio.start_server(connected, *address)


class Names(asyncio.DatagramProtocol):
    """A DNS server that knows `addresses` and nothing else."""

    def __init__(self) -> None:
        self.addresses: Mapping[str, str] = {}
        self._transport: asyncio.DatagramTransport

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    @override
    def datagram_received(self, data: bytes, addr: Address) -> None:
        self._transport.sendto(answer(data, self.addresses), addr)


def answer(query: bytes, addresses: Mapping[str, str]) -> bytes:
    """Return the answer to a DNS query with one question (RFC 1035). Names have IPv4 addresses only."""
    labels, end = [], 12
    while length := query[end]:
        labels.append(query[end + 1 : end + 1 + length].decode())
        end += 1 + length
    end += 1
    (kind,) = struct.unpack_from("!H", query, end)
    address = addresses.get(".".join(labels).lower())
    record = b""
    if address is not None and kind == _A:
        # The name is a pointer to the one in the question.
        record = struct.pack("!HHHIH4s", 0xC00C, _A, 1, _TTL_S, 4, socket.inet_aton(address))
    flags = _ANSWER_OF_AUTHORITY | (_NO_SUCH_NAME if address is None else 0)
    return query[:2] + struct.pack("!HHHHH", flags, 1, bool(record), 0, 0) + query[12 : end + 4] + record


async def _main(arguments: argparse.Namespace) -> None:
    proxy = Proxy()
    _, names = await asyncio.get_running_loop().create_datagram_endpoint(Names, local_addr=(arguments.dns, 53))
    async with KubeApi(arguments.kubeconfig) as api:
        services = Services(api, outside_addresses(arguments.outside))
        async for _ in api.watch("/api/v1/services"):
            names.addresses = await services.addresses()
            await proxy.follow(await services.routes())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m service_proxy", description="Services and their names on a node.")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--dns", required=True, help="IPv4 address at which names are asked for")
    parser.add_argument(
        "--outside", action="append", default=[], help="NAMESPACE/NAME=HOST:PORT of a Service without pods"
    )
    asyncio.run(_main(parser.parse_args()))
