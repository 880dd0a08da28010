"""The text that Prometheus reads: names, values, and what is said of lacking ones."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from profiler.nic.exposition import ethtool_name, exposition
from profiler.nic.pressure import node_gauges
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

VAD = PodName(namespace="speech", name="vad-1")


@pytest.mark.parametrize(
    ("statistic", "name"),
    [
        ("queue_0_rx_cnt", "node_ethtool_queue_0_received_cnt"),
        ("queue_0_rx_empty_rx_ring", "node_ethtool_queue_0_received_empty_received_ring"),
        ("queue_3_tx_queue_stop", "node_ethtool_queue_3_transmitted_queue_stop"),
        ("bw_in_allowance_exceeded", "node_ethtool_bw_in_allowance_exceeded"),
        ("ena_srd_tx_pkts", "node_ethtool_ena_srd_transmitted_pkts"),
        ("ena_srd_eligible_tx_pkts", "node_ethtool_ena_srd_eligible_transmitted_pkts"),
        ("missing_tx_cmpl", "node_ethtool_missing_transmitted_cmpl"),
        ("rx0_packets", "node_ethtool_rx0_packets"),
        ("rx_packets", "node_ethtool_received_packets_total"),
        ("rx-0.packets", "node_ethtool_received_0_packets"),
        ("port.rx_Dropped", "node_ethtool_port_received_dropped"),
        ("tx_tx_timeouts", "node_ethtool_transmitted_tx_timeouts"),
    ],
)
def test_statistics_have_the_names_of_node_exporter(statistic: str, name: str) -> None:
    assert ethtool_name(statistic) == name


def a_sample(at_s: float, packets: int, queued: int) -> NodeSample:
    lacking = unsupported('eth0: "none"')
    sockets = (
        UdpSocket(inode=7, version=6, queued_bytes=queued, drops=3.0, limit_bytes=1000.0, charged_bytes=float(queued)),
    )
    udp = UdpCounters(in_datagrams=1, receive_buffer_errors=0, by_name={"Udp_InErrors": 4, "Udp6_RcvbufErrors": 2})
    own = Namespace(sockets=sockets, udp=udp, packets=float(packets))
    return NodeSample(
        at_s=at_s,
        host=Namespace(sockets=sockets, udp=udp, packets=0.0),
        devices=(
            Device(
                name="eth0",
                counters=DeviceCounters(packets=packets, bytes=2, errors=3, dropped=4, fifo=5, frame=6),
                physical=True,
                queues=2.0,
                ring_size=lacking,
                ring_size_max=lacking,
                statistics={"queue_0_rx_cnt": 5, "rx_drops": 1, "rx.drops": 2, "ena_srd_mode": 3},
            ),
        ),
        softnet=(SoftnetCpu(cpu=4, processed=1, dropped=0, squeezed=0, backlog_packets=9.0),),
        budget=300.0,
        backlog_limit=1000.0,
        pods={VAD: own},
        dpdk=(
            DpdkPort(
                socket="/run/a", port=1, packets=9, missed=8, errors=7, no_buffer=6, queues=lacking, ring_size=lacking
            ),
        ),
    )


def test_no_series_occurs_twice_with_two_dpdk_applications() -> None:
    samples = [a_sample(0.0, 0, 0), a_sample(10.0, 100, 250)]
    both = [
        replace(sample, dpdk=(*sample.dpdk, replace(sample.dpdk[0], socket="/run/b", queues=1.0, ring_size=9.0)))
        for sample in samples
    ]
    text = exposition(both[-1], node_gauges(both))
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(set(series)) == len(series)
    assert 'speech_nic_rx_losses_per_second{device="dpdk1",socket="/run/b"} 0' in text.splitlines()


def served(*problems: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    samples = (a_sample(0.0, 0, 0), a_sample(10.0, 100, 250))
    text = exposition(samples[-1], node_gauges(samples), problems)
    found = [
        ((each.name, tuple(sorted(each.labels.items()))), each.value)
        for family in text_string_to_metric_families(text)
        for each in family.samples
    ]
    assert len(dict(found)) == len(found), "a series occurs twice"
    return dict(found)


def test_raw_values_have_the_names_of_node_exporter() -> None:
    found = served()
    eth0 = (("device", "eth0"),)
    assert found["node_network_receive_packets_total", eth0] == 100
    assert found["node_network_receive_frame_total", eth0] == 6
    assert found["node_ethtool_queue_0_received_cnt", eth0] == 5
    assert found["node_softnet_backlog_len", (("cpu", "4"),)] == 9
    assert found["node_netstat_Udp_InErrors", ()] == 4
    assert found["node_netstat_Udp6_RcvbufErrors", ()] == 2
    assert found["node_udp_queues", (("ip", "v6"), ("queue", "rx"))] == 250
    assert found["node_udp_queues", (("ip", "v4"), ("queue", "rx"))] == 0


def test_two_statistics_of_one_name_are_one_series() -> None:
    assert served()["node_ethtool_received_drops", (("device", "eth0"),)] == 1


def test_gauges_and_pressure_are_labelled_with_the_pod() -> None:
    found, pod = served(), (("namespace", "speech"), ("pod", "vad-1"))
    assert found["speech_nic_udp_buffer_fill_ratio", pod] == 0.25
    assert found["speech_nic_rx_queue_pressure", pod] == 0.25
    assert found["speech_nic_namespace_rx_packets_per_second", pod] == 10
    assert found["speech_nic_node_rx_queue_pressure", ()] == 0.25
    assert found["speech_nic_ena_express", (("device", "eth0"), ("mode", "both"))] == 1
    assert found["speech_nic_dpdk_receive_missed_total", (("device", "dpdk1"), ("socket", "/run/a"))] == 8


def test_what_is_lacking_has_no_series_and_is_named_with_its_reason() -> None:
    found = served("/proc/1/ns/net: Permission denied")
    assert not [
        name for name, _ in found if name in {"speech_nic_rx_ring_size", "speech_nic_rx_stall_tolerance_seconds"}
    ]
    reasons = {
        dict(labels)["metric"]: dict(labels)["reason"] for name, labels in found if name == "speech_nic_unsupported"
    }
    assert reasons["speech_nic_rx_ring_size"] == 'eth0: "none"'
    assert "speech_nic_rx_shaped_per_second" in reasons
    assert found["speech_nic_read_problems", ()] == 1


def test_nothing_is_called_the_depth_of_a_ring() -> None:
    assert not [name for name, _ in served() if "depth" in name]
