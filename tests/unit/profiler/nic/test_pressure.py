"""The gauges and the pressure, of samples that are made by hand."""

from dataclasses import replace

import pytest

from profiler.nic.pressure import (
    LOSS_SHARE,
    OWN_SHARE,
    STALL_S,
    CpuGauges,
    DeviceGauges,
    NodeGauges,
    SocketGauges,
    node_gauges,
    rx_queue_pressure,
    stall_tolerance_s,
)
from profiler.nic.readings import (
    Device,
    DeviceCounters,
    DpdkPort,
    Namespace,
    NodeSample,
    PodName,
    SoftnetCpu,
    UdpCounters,
    UdpSocket,
    unsupported,
)
from profiler.samples import Absence, AbsenceReason, Reading

LACKING = unsupported("the driver has none")
NONE = Absence(reason=AbsenceReason.NO_TRAFFIC)
VAD, OTHER = PodName(namespace="speech", name="vad-1"), PodName(namespace="speech", name="other-1")


def sockets(fill: Reading = 0.0, losses: Reading = 0.0, packets: Reading = 100.0) -> SocketGauges:
    return SocketGauges(fill=fill, queued_bytes=0.0, losses_per_s=losses, packets_per_s=packets)


def device(
    tolerance_s: Reading = 1.0,
    *,
    skew: Reading = 1.0,
    packets: Reading = 1000.0,
    losses: Reading = 0.0,
    shaped: Reading = 0.0,
) -> DeviceGauges:
    return DeviceGauges(
        name="eth0",
        packets_per_s=packets,
        stall_tolerance_s=tolerance_s,
        skew=skew,
        losses_per_s=losses,
        shaped_per_s=shaped,
    )


def cpus(fill: Reading = 0.0, losses: Reading = 0.0) -> CpuGauges:
    return CpuGauges(backlog_fill=fill, losses_per_s=losses, squeezes_per_s=5.0, squeezed_share=0.9)


class TestPressure:
    @pytest.mark.parametrize(
        ("own", "devices", "processors", "pressure"),
        [
            (sockets(0.7), [device()], cpus(0.2), 0.7),
            (sockets(0.1), [device()], cpus(0.6), 0.6),
            (sockets(0.1), [device(2 * STALL_S)], cpus(), 0.5),
            (sockets(0.1), [device(2 * STALL_S, skew=1.8)], cpus(), 0.9),
            (sockets(0.1), [device(2 * STALL_S, skew=LACKING)], cpus(), 0.5),
            (sockets(0.1), [device(STALL_S / 3)], cpus(), 1.0),
            (sockets(0.1), [device(), device(4 * STALL_S)], cpus(), 0.25),
            (sockets(0.1, losses=0.1), [], None, 1.0),
            (sockets(0.1), [], cpus(losses=0.1), 1.0),
            (sockets(0.1), [device(shaped=0.1)], None, 1.0),
            (sockets(0.1), [device(losses=2.0)], None, 1.0),
            (sockets(0.1), [device(losses=0.5 * LOSS_SHARE * 1000)], None, 0.1),
            (sockets(0.0), [], None, 0.0),
        ],
    )
    def test_is_the_largest_of_its_terms(
        self, own: SocketGauges, devices: list[DeviceGauges], processors: CpuGauges | None, pressure: float
    ) -> None:
        assert rx_queue_pressure(own, devices, processors) == pytest.approx(pressure, abs=0.005)

    def test_what_is_lacking_counts_for_nothing(self) -> None:
        nothing = device(LACKING, skew=LACKING, packets=LACKING, losses=LACKING, shaped=LACKING)
        assert rx_queue_pressure(sockets(0.4, losses=LACKING), [nothing], cpus(LACKING, LACKING)) == 0.4

    def test_is_absent_and_not_zero_if_all_is_lacking(self) -> None:
        nothing = device(LACKING, skew=LACKING, packets=LACKING, losses=LACKING, shaped=LACKING)
        assert rx_queue_pressure(sockets(LACKING, LACKING), [nothing], cpus(LACKING, LACKING)) == LACKING
        assert isinstance(rx_queue_pressure(None, (), None), Absence)

    def test_without_traffic_there_is_none(self) -> None:
        assert rx_queue_pressure(sockets(NONE, LACKING), [device(NONE, losses=LACKING)], None) == 0.0


@pytest.mark.parametrize(
    ("ring", "queues", "rate", "tolerance_s"),
    [(1024.0, 1.0, 50_000.0, 0.02048), (8192.0, 1.0, 50_000.0, 0.16384), (1024.0, 8.0, 50_000.0, 0.16384)],
)
def test_stall_tolerance(ring: float, queues: float, rate: float, tolerance_s: float) -> None:
    assert stall_tolerance_s(ring, queues, rate) == pytest.approx(tolerance_s)


def test_stall_tolerance_needs_packets_and_a_ring() -> None:
    idle = stall_tolerance_s(1024.0, 1.0, 0.0)
    assert isinstance(idle, Absence)
    assert idle.reason is AbsenceReason.NO_TRAFFIC
    assert stall_tolerance_s(LACKING, 1.0, 5.0) == LACKING
    assert stall_tolerance_s(1024.0, LACKING, 5.0) == LACKING


def a_socket(queued: int, limit: Reading = 1000.0) -> UdpSocket:
    charged = limit if isinstance(limit, Absence) else float(queued)
    return UdpSocket(inode=1, version=4, queued_bytes=queued, drops=0.0, limit_bytes=limit, charged_bytes=charged)


def a_namespace(*own: UdpSocket, lost: int = 0, packets: float = 0.0) -> Namespace:
    return Namespace(sockets=own, udp=UdpCounters(in_datagrams=0, receive_buffer_errors=lost), packets=packets)


def a_device(
    packets: int, *, queues: dict[int, int] | None = None, drop: int = 0, frame: int = 0, pps: int = 0
) -> Device:
    statistics = {f"queue_{queue}_rx_cnt": count for queue, count in (queues or {}).items()}
    allowances = {f"{name}_allowance_exceeded": pps for name in ("bw_in", "pps", "conntrack")}
    return Device(
        name="eth0",
        counters=DeviceCounters(packets=packets, bytes=0, errors=0, dropped=drop, fifo=0, frame=frame),
        physical=True,
        queues=float(len(queues)) if queues else 2.0,
        ring_size=1024.0,
        ring_size_max=4096.0,
        statistics=statistics | allowances,
    )


def a_sample(at_s: float, host: Namespace | None = None, *own: Device, **changes: object) -> NodeSample:
    sample = NodeSample(
        at_s=at_s,
        host=host or a_namespace(),
        devices=own,
        softnet=(SoftnetCpu(cpu=0, processed=0, dropped=0, squeezed=0, backlog_packets=0.0),),
        budget=300.0,
        backlog_limit=1000.0,
    )
    return replace(sample, **changes)  # type: ignore[arg-type]


def gauges(*samples: NodeSample) -> NodeGauges:
    return node_gauges(samples)


class TestGauges:
    def test_the_fill_is_that_of_the_busiest_socket_at_its_fullest(self) -> None:
        seen = [a_namespace(a_socket(100), a_socket(900, limit=10_000.0)), a_namespace(a_socket(800)), a_namespace()]
        found = gauges(*(a_sample(float(at_s), own) for at_s, own in enumerate(seen)))
        assert found.host.fill == 0.8
        assert found.node == 0.8

    def test_what_was_read_and_is_still_charged_counts(self) -> None:
        charged = replace(a_socket(600), charged_bytes=850.0)
        found = gauges(a_sample(0.0, a_namespace(charged)))
        assert (found.host.fill, found.host.queued_bytes) == (0.85, 600)

    def test_without_limits_the_fill_is_unsupported(self) -> None:
        found = gauges(
            a_sample(0.0, a_namespace(a_socket(5, LACKING))), a_sample(1.0, a_namespace(a_socket(5, LACKING)))
        )
        assert found.host.fill == LACKING
        assert found.host.queued_bytes == 5

    def test_a_single_sample_has_depths_and_no_rates(self) -> None:
        found = gauges(a_sample(0.0, a_namespace(a_socket(300)), a_device(10)))
        assert found.node == 0.3
        losses = found.host.losses_per_s
        assert isinstance(losses, Absence)
        assert losses.reason is AbsenceReason.WINDOW_TOO_SHORT
        assert isinstance(found.devices[0].packets_per_s, Absence)

    def test_rates_of_a_device(self) -> None:
        found = gauges(
            a_sample(0.0, None, a_device(0, queues={0: 0, 1: 0})),
            a_sample(10.0, None, a_device(100_000, queues={0: 75_000, 1: 25_000}, drop=20, frame=30, pps=10)),
        )
        (own,) = found.devices
        assert own.packets_per_s == 10_000
        assert own.skew == 1.5
        assert own.stall_tolerance_s == pytest.approx(0.2048)
        assert own.losses_per_s == 5
        assert own.shaped_per_s == 3
        assert found.node == 1.0

    def test_counters_that_begin_again_are_no_rate(self) -> None:
        found = gauges(
            a_sample(0.0, None, a_device(100, queues={0: 9})), a_sample(1.0, None, a_device(5, queues={0: 1}))
        )
        assert isinstance(found.devices[0].packets_per_s, Absence)
        assert isinstance(found.devices[0].skew, Absence)
        new = gauges(a_sample(0.0), a_sample(1.0, None, a_device(5, queues={0: 1})))
        assert isinstance(new.devices[0].packets_per_s, Absence)

    def test_devices_that_are_not_physical_are_left_out(self) -> None:
        bridge = replace(a_device(5), physical=False)
        assert gauges(a_sample(0.0, None, bridge), a_sample(1.0, None, bridge)).devices == ()

    def test_backlog_and_squeezes(self) -> None:
        first = SoftnetCpu(cpu=0, processed=2**32 - 1000, dropped=0, squeezed=0, backlog_packets=400.0)
        last = SoftnetCpu(cpu=0, processed=2000, dropped=20, squeezed=5, backlog_packets=100.0)
        found = gauges(a_sample(0.0, softnet=(first,)), a_sample(10.0, softnet=(last,)))
        assert found.cpus.backlog_fill == 0.4
        assert found.cpus.losses_per_s == 2
        assert found.cpus.squeezes_per_s == 0.5
        assert found.cpus.squeezed_share == pytest.approx(0.5)
        older = replace(last, backlog_packets=LACKING)
        assert gauges(a_sample(0.0, softnet=(older,)), a_sample(1.0, softnet=(older,))).cpus.backlog_fill == LACKING

    def test_without_numbers_of_cpus_nothing_is_gained_when_one_comes_or_goes(self) -> None:
        older = [SoftnetCpu(cpu=0, processed=9, dropped=5, squeezed=2, backlog_packets=LACKING)]
        older.append(replace(older[0], cpu=1, dropped=3))
        older.append(replace(older[0], cpu=2, dropped=1))
        moved = (older[0], replace(older[2], cpu=1))
        found = gauges(a_sample(0.0, softnet=tuple(older)), a_sample(1.0, softnet=moved))
        assert isinstance(found.cpus.losses_per_s, Absence)
        assert found.node != 1.0

    def test_a_port_of_a_dpdk_application_is_a_device(self) -> None:
        port = DpdkPort(socket="s", port=0, packets=0, missed=0, errors=0, no_buffer=0, queues=4.0, ring_size=LACKING)
        found = gauges(a_sample(0.0, dpdk=(port,)), a_sample(10.0, dpdk=(replace(port, packets=1000, missed=50),)))
        (own,) = found.devices
        assert (own.name, own.packets_per_s, own.losses_per_s) == ("dpdk0", 100, 5)
        assert own.stall_tolerance_s == LACKING
        assert found.node == 1.0


class TestPods:
    def seen(self, at_s: float, packets: float, *, queued: int = 0, lost: int = 0) -> NodeSample:
        pods = {
            VAD: a_namespace(a_socket(queued), lost=lost, packets=packets),
            OTHER: a_namespace(a_socket(10), packets=0.01 * OWN_SHARE * packets),
        }
        return a_sample(
            at_s, None, a_device(int(packets)), pods=pods, sharing=frozenset({PodName(namespace="a", name="b")})
        )

    def test_a_pod_has_the_pressure_of_its_own_sockets(self) -> None:
        found = gauges(self.seen(0.0, 0), self.seen(10.0, 100, queued=600))
        assert found.pressures[VAD] == pytest.approx(0.6)
        assert found.pressures[OTHER] == pytest.approx(0.01)
        assert gauges(self.seen(0.0, 0), self.seen(10.0, 100, lost=1)).pressures[VAD] == 1.0

    def test_only_pods_that_receive_take_part_in_the_pressure_of_the_device(self) -> None:
        found = gauges(self.seen(0.0, 0), self.seen(10.0, 10 * 2048 / STALL_S))
        assert found.node == pytest.approx(1.0)
        assert found.pressures[VAD] == pytest.approx(1.0)
        assert found.pressures[OTHER] == pytest.approx(0.01)

    def test_a_pod_without_a_namespace_of_its_own_has_the_pressure_of_the_node(self) -> None:
        found = gauges(self.seen(0.0, 0), self.seen(10.0, 10 * 2048 / STALL_S))
        assert found.pressures[PodName(namespace="a", name="b")] == found.node

    def test_a_pod_that_is_new_has_no_rates_yet_and_one_that_is_gone_is_left_out(self) -> None:
        found = gauges(a_sample(0.0), self.seen(10.0, 100, queued=500))
        assert found.pressures[VAD] == pytest.approx(0.5)
        assert isinstance(found.pods[VAD].losses_per_s, Absence)
        assert VAD not in gauges(self.seen(0.0, 0), a_sample(10.0)).pressures
