"""Ports for servers that go away and come back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

#: Below the range from which outgoing connections take theirs on Linux, macOS and Windows. A client that knocks at a
#: closed port of that range may be given the very port it knocks at, connect to itself, and keep the server out.
LOWEST, HIGHEST = 20_000, 32_000


#: A Cluster node also listens this much higher, where its neighbours find it.
BUS = 10_000

_given: set[int] = set()


def lasting_port() -> int:
    """A free port that nobody takes by accident while its server is away: no other test process is given it while this
    one lives.
    """
    while True:
        port = random.randint(LOWEST, HIGHEST)
        if _ours(port):
            return port


def port_pair() -> int:
    """The same for a Cluster node: the port for its neighbours is as free and as lasting."""
    while True:
        port = random.randint(LOWEST - BUS + 1, HIGHEST - BUS)
        if _ours(port) and _ours(port + BUS):
            return port


def _ours(port: int) -> bool:
    """Free, and from now on this process's. Between the look and the server's start another process would find it free,
    too: hence the lock on a byte of a file that all share, which goes with the process.
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
    """The file, opened once in each process: closing it would let go of every lock on it."""
    path = Path(tempfile.gettempdir()) / "backstay-test-ports"
    book = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # another user made it: then it is open to all already
        os.fchmod(book, 0o666)
    return book


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
