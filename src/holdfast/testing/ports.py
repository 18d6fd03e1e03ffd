"""Ports for servers that go away and come back."""

from __future__ import annotations

import random
import socket

#: Below the range from which outgoing connections take theirs on Linux, macOS and Windows. A client that knocks at a
#: closed port of that range may be given the very port it knocks at, connect to itself, and keep the server out.
LOWEST, HIGHEST = 20_000, 32_000


def lasting_port() -> int:
    """A free port that nobody takes by accident while its server is away."""
    while True:
        port = random.randint(LOWEST, HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
