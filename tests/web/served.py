"""Start `backstay serve` with a built-in worker."""

from __future__ import annotations


def serve(start, folder, *arguments):
    """Start a server with a built-in worker and return its URL."""
    server = start(
        *("--url", f"sqlite:///{folder / 'backstay.db'}?synchronous=normal", "serve", "--port", "0"),
        *("--worker", "--allow-commands", "--concurrency", "4", "--no-access-log", *arguments),
    )
    return server.waits_for(r"listening on (http://\S+)")[1]
