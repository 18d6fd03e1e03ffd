"""Reserve TCP ports for test servers that are stopped and restarted on the same port."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from functools import cache
from pathlib import Path

from backstay.engine.jitter import RANDOM

#: Ports below the ephemeral range of Linux, macOS and Windows. If a server's port were in that range, a client that
#: connects while the server is down could get this port as its own, connect to itself (TCP self-connect), and keep the
#: server from binding it.
LOWEST, HIGHEST = 20_000, 32_000


#: Offset of a Cluster node's bus port from its client port.
BUS = 10_000

_reserved: set[int] = set()


def reserve_port() -> int:
    """Reserve a free port until this process exits. No other test process gets it, even while its server is down."""
    while True:
        port = RANDOM.randint(LOWEST, HIGHEST)
        if _reserve(port):
            return port


def reserve_port_pair() -> int:
    """Reserve a port for a Cluster node together with its bus port (`port + BUS`). Returns the client port."""
    while True:
        port = RANDOM.randint(LOWEST - BUS + 1, HIGHEST - BUS)
        if _reserve(port) and _reserve(port + BUS):
            return port


def _reserve(port: int) -> bool:
    """Reserve a port for this process. Return False if it is in use or reserved. The reservation is a lock on one byte
    of a file that all test processes share; a check of the port alone would find it free until the server binds it.
    """
    if port in _reserved:
        return False
    try:
        fcntl.lockf(_open_lock_file(os.getpid()), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    if not _is_free(port):
        return False
    _reserved.add(port)
    return True


@cache
def _open_lock_file(_pid: int) -> int:
    """Return the descriptor of the shared lock file. It is opened once per process and never closed, because closing it
    would drop every lock.
    """
    path = Path(tempfile.gettempdir()) / "backstay-test-ports"
    book = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # another user created it, with this mode
        os.fchmod(book, 0o666)
    return book


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
