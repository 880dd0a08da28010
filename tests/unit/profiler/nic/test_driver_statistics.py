"""The names of the statistics of each driver."""

from pathlib import Path

import pytest

from profiler.nic.driver_statistics import ALLOWANCES, RECEIVE_ALLOWANCES, exceeded, queue_packets

ENA = {
    name: int(value)
    for name, _, value in (
        line.partition(": ")
        for line in (Path(__file__).parent / "recorded" / "documented" / "ena_statistics.txt").read_text().splitlines()
    )
}


@pytest.mark.parametrize(
    ("names", "queues"),
    [
        (["queue_0_rx_cnt", "queue_12_rx_cnt", "queue_0_rx_bytes", "queue_0_tx_cnt"], {0, 12}),
        (["rx_queue_0_packets", "rx_queue_1_packets", "rx_packets"], {0, 1}),
        (["rx-0.packets", "rx-1.packets", "tx-0.packets"], {0, 1}),
        (["rx0_packets", "rx1_packets", "rx0_xdp_packets"], {0, 1}),
        (["rx_packets"], set()),
    ],
    ids=["ena", "virtio_net", "i40e", "mlx5", "none"],
)
def test_packets_of_the_queues_of_each_driver(names: list[str], queues: set[int]) -> None:
    assert queue_packets(dict.fromkeys(names, 1)).keys() == queues


def test_allowances_of_ena() -> None:
    assert exceeded(ENA, RECEIVE_ALLOWANCES) == 43
    assert exceeded(ENA, ALLOWANCES) == 452
    assert exceeded({"bw_in_allowance_exceeded": 1}, RECEIVE_ALLOWANCES) is None
    assert exceeded({}, RECEIVE_ALLOWANCES) is None
