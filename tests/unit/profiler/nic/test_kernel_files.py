"""The parsers, against files recorded on Linux 6.18, and in the formats of older kernels."""

from pathlib import Path

import pytest

from profiler.nic.kernel_files import (
    InvalidFile,
    devices,
    increase,
    pod_uid,
    softnet,
    udp_counters,
    udp_sockets,
    wrapped_increase,
)
from profiler.samples import Absence, AbsenceReason

RECORDED = Path(__file__).parent / "recorded"
UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
SLICE = f"pod{UID.replace('-', '_')}.slice"


def recorded(name: str, folder: str = "linux-6.18") -> str:
    return (RECORDED / folder / name).read_text()


def test_sockets_have_what_waits_and_what_was_lost() -> None:
    flooded, idle = udp_sockets(recorded("udp"), 4)
    assert (flooded.queued_bytes, flooded.drops, flooded.version) == (0x3DC0, 21, 4)
    assert (idle.queued_bytes, idle.drops) == (0, 0)
    assert isinstance(flooded.limit_bytes, Absence)
    (waiting, _) = udp_sockets(recorded("udp6"), 6)
    assert (waiting.queued_bytes, waiting.drops, waiting.version) == (0x2D00, 0, 6)


def test_a_socket_without_the_column_drops_has_none() -> None:
    header, line, *_ = recorded("udp").splitlines()
    (socket,) = udp_sockets("\n".join([header, " ".join(line.split()[:-1])]), 4)
    assert isinstance(socket.drops, Absence)
    assert socket.drops.reason is AbsenceReason.UNSUPPORTED


@pytest.mark.parametrize(
    "line", ["x", "1: 0:0 0:0 07 00000000 0:0 0 0 0 1 2 3 4", "1: 0:0 0:0 07 0:ZZ 0:0 0 0 0 1 2 3 4"]
)
def test_a_line_of_another_format_is_refused(line: str) -> None:
    with pytest.raises(InvalidFile, match="/proc/net/udp"):
        udp_sockets(f"header\n{line}\n", 4)


def test_softnet_is_hexadecimal_and_names_its_cpus() -> None:
    found = softnet(recorded("softnet_stat"))
    assert [cpu.cpu for cpu in found] == [0, 1]
    assert all(cpu.processed > 0xFFFF for cpu in found)
    assert [cpu.backlog_packets for cpu in found] == [0, 0]


def test_an_offline_cpu_has_no_line_and_moves_no_other() -> None:
    assert [cpu.cpu for cpu in softnet(recorded("softnet_stat").splitlines()[1] + "\n")] == [1]


def test_softnet_of_an_older_kernel_has_no_backlog() -> None:
    first, second = softnet(recorded("softnet_stat_4.14", "documented"))
    assert (first.processed, first.dropped, first.squeezed) == (0x15C73, 0x20E76, 0x769)
    assert (first.cpu, second.cpu) == (0, 1)
    assert isinstance(first.backlog_packets, Absence)


def test_softnet_of_another_format_is_refused() -> None:
    with pytest.raises(InvalidFile, match="softnet_stat"):
        softnet("0001 0002\n")


def test_udp_counters_are_of_both_versions_of_ip() -> None:
    snmp, snmp6 = (
        recorded("snmp"),
        recorded("snmp6").replace("Udp6RcvbufErrors                \t0", "Udp6RcvbufErrors 4"),
    )
    found = udp_counters(snmp, snmp6)
    assert not isinstance(found, Absence)
    assert found.receive_buffer_errors == 25
    assert (found.by_name["Udp_RcvbufErrors"], found.by_name["Udp6_RcvbufErrors"]) == (21, 4)


def test_refusals_for_want_of_memory_count_as_losses() -> None:
    snmp = recorded("snmp").replace("Udp: 0 0 21 40 21 0 0 0 0", "Udp: 0 0 21 40 21 0 0 0 5")
    found = udp_counters(snmp, "")
    assert not isinstance(found, Absence)
    assert found.receive_buffer_errors == 26


def test_udp_counters_of_an_older_kernel() -> None:
    found = udp_counters(recorded("snmp_4.14", "documented"), "")
    assert not isinstance(found, Absence)
    assert (found.in_datagrams, found.receive_buffer_errors) == (190585, 7)
    assert "Udp_MemErrors" not in found.by_name


@pytest.mark.parametrize("text", ["", "Udp: InDatagrams NoPorts\nUdp: 1 2\n", "Tcp: A\nTcp: 1\n"])
def test_missing_counters_are_absent(text: str) -> None:
    found = udp_counters(text, "")
    assert isinstance(found, Absence)
    assert found.reason is AbsenceReason.UNSUPPORTED


def test_devices_have_the_receive_side() -> None:
    assert devices(recorded("dev"))["lo"].packets > 0
    found = devices(recorded("dev_5.10", "documented"))
    assert list(found) == ["lo", "eth0", "eth0.7"]
    assert (found["eth0"].bytes, found["eth0"].packets, found["eth0"].lost) == (2**63 - 1, 118733914, 58)


def test_a_device_of_another_format_is_refused() -> None:
    with pytest.raises(InvalidFile, match="/proc/net/dev"):
        devices("a\nb\n eth0: 1 2 three\n")


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{SLICE}/cri-containerd-ab.scope",
        f"0::/kubepods.slice/kubepods-{SLICE}/cri-containerd-ab.scope",
        f"0::/../../kubepods-besteffort-{SLICE}/crio-ab.scope/container",
        f"0::/kubepods/besteffort/pod{UID}/ab12",
        f"11:memory:/kubepods/burstable/pod{UID}/ab12\n1:name=systemd:/kubepods/burstable/pod{UID}/ab12\n0::/system.slice",
    ],
    ids=["systemd", "systemd guaranteed", "own cgroup namespace", "cgroupfs", "version 1"],
)
def test_the_pod_of_a_process(cgroup: str) -> None:
    assert pod_uid(cgroup + "\n") == UID


@pytest.mark.parametrize("cgroup", ["0::/init.scope", "0::/system.slice/kubelet.service", "0::/", "", "0::/podman-1"])
def test_a_process_outside_of_pods(cgroup: str) -> None:
    assert pod_uid(cgroup) is None


def test_counters_that_begin_again_have_no_increase_and_those_of_32_bits_wrap() -> None:
    assert (increase(5, 8), increase(8, 5)) == (3, None)
    assert (wrapped_increase(5, 8), wrapped_increase(2**32 - 2, 3)) == (3, 5)
