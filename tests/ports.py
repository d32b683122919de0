"""Ports for what tests start: free now, and not of those that the kernel hands to outgoing connections.

A port of the ephemeral range may be taken by any connection between being chosen and being bound.
"""

import itertools
import os
import random
import socket

FIRST, LAST = 15_000, 32_000
_candidates = itertools.cycle(random.Random(os.getpid()).sample(range(FIRST, LAST), LAST - FIRST))


def free_port(*addresses: str) -> int:
    """Return a port that is free on every one of *addresses* (the loopback where none is given)."""
    for port in itertools.islice(_candidates, LAST - FIRST):
        if all(_is_free(address, port) for address in addresses or ("127.0.0.1",)):
            return port
    raise OSError(f"no free port from {FIRST} to {LAST}")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
