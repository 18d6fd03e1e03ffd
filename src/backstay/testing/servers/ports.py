"""Reserve TCP ports for test servers that are stopped and restarted on the same port."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

#: Ports below the ephemeral range of Linux, macOS and Windows. A client that connects to a closed port in that range
#: may get the same port as its local port, connect to itself (TCP self-connect) and block the server's bind.
LOWEST, HIGHEST = 20_000, 32_000


#: Offset of a Cluster node's bus port from its client port.
BUS = 10_000

_given: set[int] = set()


def lasting_port() -> int:
    """Reserve a free port until this process exits. No other test process gets it, even while its server is down."""
    while True:
        port = random.randint(LOWEST, HIGHEST)
        if _ours(port):
            return port


def port_pair() -> int:
    """Reserve a port for a Cluster node together with its bus port (`port + BUS`). Returns the client port."""
    while True:
        port = random.randint(LOWEST - BUS + 1, HIGHEST - BUS)
        if _ours(port) and _ours(port + BUS):
            return port


def _ours(port: int) -> bool:
    """Reserve the port for this process. Returns False if it is in use or reserved. The reservation is a lock on one
    byte of a file that all test processes share: until the server binds the port, others would find it free.
    """
    if port in _given:
        return False
    try:
        fcntl.lockf(_book(os.getpid()), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    if not _free(port):
        return False
    _given.add(port)
    return True


@cache
def _book(_pid: int) -> int:
    """Return the shared lock file's descriptor. It is opened once per process, because closing it drops every lock."""
    path = Path(tempfile.gettempdir()) / "backstay-test-ports"
    book = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # another user created it, with this mode
        os.fchmod(book, 0o666)
    return book


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
