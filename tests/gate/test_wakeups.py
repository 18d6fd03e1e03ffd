"""Waiters are woken also while the subscription of their process is still opening."""

from __future__ import annotations

import asyncio
import threading

from backstay import Backstay
from backstay.testing.waiting import eventually, soon

NAME = "invoice:42"
#: Far below a waiter's longest recheck (10 s).
WOKEN_WITHIN = 5.0


class SlowHub:
    """Subscribe only when `open` is called; earlier messages are lost."""

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


def test_waiters_recheck_after_hints_published_before_the_subscription(engine_url, namespace):
    """Several waiters start while the subscription opens; their places are freed before it is open."""

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
            async with asyncio.timeout(WOKEN_WITHIN):
                await asyncio.gather(*visits)

    asyncio.run(scenario())


def test_threads_that_begin_to_wait_together_are_all_woken(engine_url, connect):
    stay = connect(engine_url)
    slow = SlowHub(stay._core.hub)
    held = [stay.semaphore(NAME, permits=3).acquire() for _ in range(3)]

    def visit():
        with stay.semaphore(NAME, permits=3):
            pass

    threads = [threading.Thread(target=visit, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    # Without the hub, each thread subscribes on its own connection.
    by_hub = stay.engine.thread_subscribers() is None
    assert eventually(lambda: (slow.asked or not by_hub) and stay.locks.inspect(NAME).waiter_count == 3)
    for lease in held:
        lease.release()
    if by_hub:
        slow.open()
    assert eventually(lambda: not any(thread.is_alive() for thread in threads), WOKEN_WITHIN)
