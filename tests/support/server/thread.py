"""Run a server in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from backstay.testing.waiting import WITHIN, eventually


@contextlib.contextmanager
def server_thread(serve, stop):
    """Run the coroutine `serve(ready)` in a thread. It calls `ready(server)` with the server that it is about to run,
    and returns after `stop(server)`. Yields the event loop and the server once `server.started` is true. An error in
    the thread fails the test.
    """
    is_ready = threading.Event()
    made, errors = [], []

    def ready(server):
        made.extend([asyncio.get_running_loop(), server])
        is_ready.set()

    def run():
        try:
            asyncio.run(serve(ready))
        except BaseException as error:  # noqa: BLE001 - raised in the test
            errors.append(error)
            is_ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert is_ready.wait(WITHIN)
        assert not errors, errors
        loop, server = made
        assert eventually(lambda: server.started or errors)
        assert not errors, errors
        yield loop, server
    finally:
        if made:
            stop(made[1])
        thread.join(30)
        is_stuck = thread.is_alive()
    assert not errors, errors
    assert not is_stuck, "the server did not stop"
