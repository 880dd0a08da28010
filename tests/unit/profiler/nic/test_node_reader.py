"""The reader, on recorded files and on the kernel that runs the test."""

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from profiler.nic.node_reader import NodeReader
from profiler.nic.pressure import node_gauges
from profiler.nic.readings import PodName
from profiler.nic.socket_diagnostics import SocketMemory, parse
from profiler.samples import Absence, AbsenceReason

RECORDED = Path(__file__).parent / "recorded" / "linux-6.18"
UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
VAD = PodName(namespace="speech", name="vad-1")
MEMORY, _ = parse(bytes.fromhex((RECORDED / "sock_diag.hex").read_text().splitlines()[0]))


def named(uids: frozenset[str]) -> Mapping[str, PodName]:
    return {UID: VAD} if UID in uids else {}


def refuse(*_: object) -> bytes:
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")


@pytest.fixture
def node(tmp_path: Path) -> NodeReader:
    """A node whose files are the recorded ones, with a device that the driver says nothing of."""
    for pid in ("self", "12"):
        (tmp_path / "proc" / pid / "ns").mkdir(parents=True)
        shutil.copytree(RECORDED, tmp_path / "proc" / pid / "net")
        (tmp_path / "proc" / pid / "ns" / "net").write_text(pid)
    (tmp_path / "proc" / "12" / "cgroup").write_text(f"0::/kubepods/pod{UID}/a\n")
    settings = tmp_path / "proc" / "sys" / "net" / "core"
    settings.mkdir(parents=True)
    (settings / "netdev_budget").write_text("300\n")
    (settings / "netdev_max_backlog").write_text("1000\n")
    (tmp_path / "sys" / "class" / "net" / "lo" / "device").mkdir(parents=True)
    (tmp_path / "sys" / "class" / "net" / "lo" / "queues" / "rx-0").mkdir(parents=True)
    return NodeReader(
        proc=tmp_path / "proc",
        sys=tmp_path / "sys",
        pod_names=named,
        call=refuse,
        diagnose=lambda: MEMORY,
        clock=lambda: 5.0,
    )


def test_the_sockets_have_the_sizes_of_their_buffers(node: NodeReader) -> None:
    sample = node.read()
    assert not isinstance(sample.host.sockets, Absence)
    fullest = max(sample.host.sockets, key=lambda each: each.queued_bytes)
    assert (fullest.queued_bytes, fullest.limit_bytes) == (0x3DC0, 16384)
    assert (sample.budget, sample.backlog_limit, sample.at_s) == (300, 1000, 5)
    assert node_gauges([sample]).node == pytest.approx(0x3DC0 / 16384)


def test_a_socket_that_is_not_in_the_answer_has_no_limit(node: NodeReader) -> None:
    node.diagnose = dict[int, SocketMemory]
    sample = node.read()
    assert not isinstance(sample.host.sockets, Absence)
    assert all(isinstance(each.limit_bytes, Absence) for each in sample.host.sockets)


def test_without_sock_diag_what_waits_is_known_and_the_fill_is_unsupported(node: NodeReader) -> None:
    def no_module() -> Mapping[int, SocketMemory]:
        raise OSError(errno.ENOENT, "No such file or directory")

    node.diagnose = no_module
    found = node_gauges([node.read()])
    assert isinstance(found.host.fill, Absence)
    assert found.host.fill.reason is AbsenceReason.UNSUPPORTED
    assert found.host.queued_bytes == 0x3DC0 + 0x2D00
    assert any("sizes of receive buffers of the node" in problem for problem in node.problems)


def test_a_driver_without_rings_is_unsupported_and_its_queues_are_those_of_the_kernel(node: NodeReader) -> None:
    (device,) = node.read().devices
    assert isinstance(device.ring_size, Absence)
    assert isinstance(device.statistics, Absence)
    assert device.queues == 1


def test_missing_files_are_absent_and_named(node: NodeReader) -> None:
    for name in ("udp", "snmp", "softnet_stat", "dev"):
        (node.proc / "self" / "net" / name).unlink()
    (node.proc / "sys" / "net" / "core" / "netdev_budget").write_text("many\n")
    sample = node.read()
    for reading in (sample.host.sockets, sample.host.udp, sample.softnet, sample.host.packets, sample.budget):
        assert isinstance(reading, Absence)
        assert reading.reason is AbsenceReason.UNSUPPORTED
    assert sample.devices == ()
    assert len(node.problems) >= 4


def test_without_ipv6_nothing_is_missing(node: NodeReader) -> None:
    for name in ("udp6", "snmp6"):
        (node.proc / "self" / "net" / name).unlink()
    sample = node.read()
    assert not isinstance(sample.host.sockets, Absence)
    assert len(sample.host.sockets) == 2


@pytest.mark.parametrize("name", ["udp", "udp6", "softnet_stat", "dev"])
def test_files_of_an_unknown_format_are_absent_and_named(node: NodeReader, name: str) -> None:
    (node.proc / "self" / "net" / name).write_text("a\nb\nc: d\n")
    sample = node.read()
    wrong = {
        "udp": sample.host.sockets,
        "udp6": sample.host.sockets,
        "softnet_stat": sample.softnet,
        "dev": sample.host.packets,
    }[name]
    assert isinstance(wrong, Absence)
    assert any("cannot be parsed" in problem for problem in node.problems)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("snmp", "Udp: InDatagrams InErrors RcvbufErrors\nUdp: 1 x 3\n"),
        ("snmp6", "Udp6InDatagrams\n"),
        ("snmp6", "Udp6InDatagrams many\n"),
    ],
)
def test_counters_that_cannot_be_parsed_are_absent_and_named(node: NodeReader, name: str, text: str) -> None:
    (node.proc / "self" / "net" / name).write_text(text)
    assert isinstance(node.read().host.udp, Absence)
    assert any(f"/proc/net/{name}" in problem for problem in node.problems)


def test_the_reason_for_a_file_that_cannot_be_parsed_does_not_change_with_the_file(node: NodeReader) -> None:
    reasons = set()
    for text in ("a\n1 2 3\n", "a\n4 5 6\n"):
        (node.proc / "self" / "net" / "udp").write_text(text)
        reasons.add(node.read().host.sockets)
    assert len(reasons) == 1


def test_names_may_have_bytes_that_are_no_text(node: NodeReader) -> None:
    (node.proc / "13").mkdir()
    (node.proc / "13" / "cgroup").write_bytes(b"0::/\xff\xfe\n")
    text = (node.proc / "self" / "net" / "dev").read_bytes()
    (node.proc / "self" / "net" / "dev").write_bytes(text.replace(b"lo:", b"\xff:"))
    assert [each.name for each in node.read().devices] == ["\ufffd"]


class TestPods:
    def test_a_pod_whose_namespace_may_not_be_read_shares_the_pressure_of_the_node(self, node: NodeReader) -> None:
        (node.proc / "12" / "ns" / "net").unlink()
        sample = node.read()
        assert (dict(sample.pods), set(sample.sharing)) == ({}, {VAD})
        assert node_gauges([sample]).pressures[VAD] == node_gauges([sample]).node

    def test_a_pod_in_the_network_namespace_of_the_node_shares_it(self, node: NodeReader) -> None:
        (node.proc / "12" / "ns" / "net").unlink()
        (node.proc / "12" / "ns" / "net").hardlink_to(node.proc / "self" / "ns" / "net")
        assert node.read().sharing == {VAD}

    def test_a_pod_that_may_not_be_entered_has_what_its_files_show(self, node: NodeReader) -> None:
        sample = node.read()  # a file is no namespace, so entering it fails
        assert isinstance(node_gauges([sample]).pods[VAD].fill, Absence)
        assert node_gauges([sample]).pods[VAD].queued_bytes == 0x3DC0 + 0x2D00
        assert any("speech/vad-1" in problem for problem in node.problems)

    def test_pods_without_a_name_are_left_out_and_counted(self, node: NodeReader) -> None:
        node.pod_names = lambda _: {}
        sample = node.read()
        assert (len(sample.pods), len(sample.sharing)) == (0, 0)
        assert any("1 pods are not known by name" in problem for problem in node.problems)

    def test_new_pods_are_found_at_intervals_and_pods_that_end_at_once(self, node: NodeReader) -> None:
        now_s = 0.0
        node.clock = lambda: now_s
        shutil.move(node.proc / "12", node.proc / "later")
        assert not node.read().pods
        shutil.move(node.proc / "later", node.proc / "12")
        assert not node.read().pods
        now_s = 11.0
        assert set(node.read().pods) == {VAD}
        shutil.rmtree(node.proc / "12")
        assert not node.read().pods


def test_telemetry_that_does_not_answer_is_named(node: NodeReader, tmp_path: Path) -> None:
    (tmp_path / "dpdk_telemetry.v2").touch()
    node.dpdk = (f"{tmp_path}/dpdk_*.v2",)
    assert node.read().dpdk == ()
    assert any("DPDK telemetry" in problem for problem in node.problems)


def test_a_telemetry_socket_that_two_patterns_have_is_read_once(node: NodeReader, tmp_path: Path) -> None:
    (tmp_path / "dpdk_telemetry.v2").touch()
    node.dpdk = (f"{tmp_path}/dpdk_*.v2", f"{tmp_path}/*.v2")
    node.read()
    assert sum("DPDK telemetry" in problem for problem in node._found) == 1


def test_this_machine_can_be_read() -> None:
    sample = NodeReader().read()
    assert not isinstance(sample.softnet, Absence)
    assert not isinstance(sample.host.udp, Absence)
    assert {device.name for device in sample.devices} >= {"lo"}


_IN_A_POD = """
import json, socket, sys
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
own.bind(("127.0.0.1", 0))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(20):
    sender.sendto(bytes(160), own.getsockname())
own.recv(10, socket.MSG_PEEK)
print(json.dumps(own.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)), flush=True)
sys.stdin.read()
"""


def test_the_sockets_of_a_pod_are_read_inside_its_network_namespace(tmp_path: Path) -> None:
    started = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", f'ip link set lo up && exec "{sys.executable}" -c "$0"', _IN_A_POD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        if not line:
            pytest.skip("no right to make a network namespace")
        proc = tmp_path / "proc"
        (proc / "7").mkdir(parents=True)
        for name in ("ns", "net"):
            (proc / "7" / name).symlink_to(f"/proc/{started.pid}/{name}")
        (proc / "7" / "cgroup").write_text(f"0::/kubepods/pod{UID}/a\n")
        for name in ("self", "sys"):
            (proc / name).symlink_to(f"/proc/{name}")
        reader = NodeReader(proc=proc, pod_names=named)
        sample = reader.read()
        if isinstance(node_gauges([sample]).pods[VAD].fill, Absence):
            pytest.skip(f"{reader.problems}")
        sockets = sample.pods[VAD].sockets
        assert not isinstance(sockets, Absence)
        fullest = max(sockets, key=lambda each: each.queued_bytes)
        assert fullest.limit_bytes == json.loads(line)
        pressure = node_gauges([sample]).pressures[VAD]
        assert not isinstance(pressure, Absence)
        assert 0.1 < pressure <= 1
    finally:
        started.communicate(timeout=10)
