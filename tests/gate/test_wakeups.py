"""Who waits is told, also while this process only begins to listen."""

from __future__ import annotations

import asyncio
import threading

from backstay import Backstay
from backstay.testing.waiting import eventually, soon

NAME = "invoice:42"
#: Far below a waiter's longest recheck (10 s).
TOLD = 5.0


class SlowHub:
    """Subscribes only when `open` is called: what is published before is not heard."""

    error = None

    def __init__(self, hub):
        self._subscribe = hub.subscribe
        hub.subscribe = self
        self.asked = None
        self._subscription = None

    def __call__(self, *asked, **options):
        self.asked, self.options = asked, options
        return self

    def open(self):
        self._subscription = self._subscribe(*self.asked, **self.options)

    @property
    def is_ready(self):
        return self._subscription is not None and self._subscription.is_ready


def test_hints_that_passed_before_the_inbox_was_heard_are_made_up_for(engine_url, namespace):
    """Several begin to wait while the subscription is opened; their places come free before it is."""

    async def scenario():
        async with Backstay(engine_url, namespace=namespace) as stay:
            slow = SlowHub(stay._core.hub)
            held = [await stay.semaphore(NAME, permits=3).acquire() for _ in range(3)]

            async def visit():
                async with stay.semaphore(NAME, permits=3):
                    pass

            visits = [asyncio.create_task(visit()) for _ in range(3)]

            async def queued():
                return slow.asked and (await stay.locks.inspect(NAME)).waiter_count == 3

            assert await soon(queued)
            for lease in held:
                await lease.release()
            slow.open()
            async with asyncio.timeout(TOLD):
                await asyncio.gather(*visits)

    asyncio.run(scenario())


def test_threads_that_begin_to_wait_together_are_all_told(engine_url, connect):
    stay = connect(engine_url)
    slow = SlowHub(stay._core.hub)
    held = [stay.semaphore(NAME, permits=3).acquire() for _ in range(3)]

    def visit():
        with stay.semaphore(NAME, permits=3):
            pass

    threads = [threading.Thread(target=visit, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    by_hub = stay.engine.thread_ears() is None  # else each thread hears on its own connection, and no hub is asked
    assert eventually(lambda: (slow.asked or not by_hub) and stay.locks.inspect(NAME).waiter_count == 3)
    for lease in held:
        lease.release()
    if by_hub:
        slow.open()
    assert eventually(lambda: not any(thread.is_alive() for thread in threads), TOLD)
