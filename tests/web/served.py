"""`backstay serve` with a worker in it, as people start it."""

from __future__ import annotations


def serve(start, folder, *arguments):
    """The URL of a server of its own, with a worker in it."""
    server = start(
        *("--url", f"sqlite:///{folder / 'backstay.db'}?synchronous=normal", "serve", "--port", "0"),
        *("--worker", "--allow-commands", "--concurrency", "4", "--no-access-log", *arguments),
    )
    return server.waits_for(r"listening on (http://\S+)")[1]
