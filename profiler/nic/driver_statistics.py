"""What the statistics of network drivers (`ethtool -S`) say of queues and of the allowances of EC2. Pure."""

import re
from collections.abc import Mapping

_QUEUE_PACKETS = (
    re.compile(r"queue_(\d+)_rx_cnt"),  # ena
    re.compile(r"rx_queue_(\d+)_packets"),  # virtio_net, igb, ixgbe
    re.compile(r"rx-(\d+)\.packets"),  # i40e
    re.compile(r"rx(\d+)_packets"),  # mlx5, gve, newer virtio_net
)
ALLOWANCES = ("bw_in", "bw_out", "pps", "conntrack", "linklocal")
"""The allowances of an EC2 instance beyond which ENA queues or drops packets."""
RECEIVE_ALLOWANCES = ("bw_in", "pps", "conntrack")
"""Those that limit what an instance receives."""


def queue_packets(found: Mapping[str, int]) -> Mapping[int, int]:
    """Return the packets that each receive queue took, from the statistics of a driver; empty where it has none."""
    return {
        int(match[1]): value
        for name, value in found.items()
        for pattern in _QUEUE_PACKETS
        if (match := pattern.fullmatch(name)) is not None
    }


def exceeded(found: Mapping[str, int], allowances: tuple[str, ...]) -> int | None:
    """Return the packets beyond the EC2 allowances; None where the driver lacks one of the counters."""
    values = [found.get(f"{allowance}_allowance_exceeded") for allowance in allowances]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
