"""Run servers for one test or fixture."""

from __future__ import annotations

import contextlib

from backstay.testing.plugin import start_or_skip


@contextlib.contextmanager
def running(server):
    """Start a server, or a group of servers, and stop it at the end of the block. If its program is not installed, the
    test is skipped, or fails in CI.
    """
    try:
        yield start_or_skip(server)
    finally:
        server.stop()
