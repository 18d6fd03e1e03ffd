"""Cancel a coroutine at its k-th suspension, for any k."""

from __future__ import annotations

import asyncio


class CancelAt:
    """Await `coro` and cancel the current task at its k-th suspension.

    when="at once" cancels as it begins to wait. when="too late" cancels as the awaited reply arrives, before `coro`
    sees it. `.fired` is true if the k-th suspension happened.
    """

    def __init__(self, coro, k, when):
        self._coro = coro
        self._k = k
        self._when = when
        self.fired = False

    def __await__(self):
        task = asyncio.current_task()
        steps = self._coro.__await__()
        suspended = 0
        send, value = steps.send, None
        while True:
            try:
                waits_for = send(value)
            except StopIteration as done:
                return done.value
            suspended += 1
            if suspended == self._k:
                self.fired = True
                if self._when == "too late" and waits_for is not None:
                    waits_for.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            try:
                value = yield waits_for
                send = steps.send
            except BaseException as error:  # noqa: BLE001 - re-raised inside the coroutine
                send, value = steps.throw, error
