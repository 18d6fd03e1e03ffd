"""Ports for servers that go away and come back."""

from __future__ import annotations

import random
import socket

#: Below the range from which outgoing connections take theirs on Linux, macOS and Windows. A client that knocks at a
#: closed port of that range may be given the very port it knocks at, connect to itself, and keep the server out.
LOWEST, HIGHEST = 20_000, 32_000


#: A Cluster node also listens this much higher, where its neighbours find it.
BUS = 10_000


def lasting_port() -> int:
    """A free port that nobody takes by accident while its server is away."""
    while True:
        port = random.randint(LOWEST, HIGHEST)
        if _free(port):
            return port


def port_pair() -> int:
    """The same for a Cluster node: the port for its neighbours is as free and as lasting."""
    while True:
        port = random.randint(LOWEST - BUS + 1, HIGHEST - BUS)
        if _free(port) and _free(port + BUS):
            return port


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
