"""Addresses of this machine for servers with fixed ports."""

import random


def an_address() -> str:
    """Return a random loopback address, so that servers of tests that run at once do not collide."""
    return f"127.{random.randrange(2, 250)}.{random.randrange(256)}.{random.randrange(1, 255)}"
