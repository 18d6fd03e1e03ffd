"""`close()` wakes every caller that waits, or is about to: it gets `Closed` at once and leaves the queue."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import backstay
from backstay import sync
from backstay.errors import Closed
from backstay.testing.waiting import eventually, soon
from support.event_loop import on_a_loop

NAME = "invoice:42"
#: Seconds within which a caller hears `Closed`. A caller that is not woken polls after ten.
PROMPTLY = 5.0


class HeldReply:
    """Holds back the next reply of a port's engine until the Backstay closes: the caller begins to wait only then."""

    def __init__(self, stay, monkeypatch):
        self._core = stay.internals.core
        self._apply = self._core.port.apply
        self.is_held = False
        monkeypatch.setattr(self._core.port, "apply", self._apply_and_hold)

    def is_closed(self):
        return self._core.closed

    async def _apply_and_hold(self, op):
        reply = await self._apply(op)
        if not self.is_held:
            self.is_held = True
            await self._wait()
        return reply


class BlockingHeldReply(HeldReply):
    async def _wait(self):
        assert eventually(self.is_closed)


class AsyncHeldReply(HeldReply):
    async def _wait(self):
        async def is_closed():
            return self.is_closed()

        assert await soon(is_closed)


class Caller(threading.Thread):
    """Runs a blocking call and keeps what it raised, and when."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self._call = call
        self.error = None
        self.ended = 0.0

    def run(self):
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        self.ended = time.monotonic()


@pytest.fixture
def other(connect, shared_url):
    """A second Backstay: it has what the first one waits for, and sees what the first one leaves behind."""
    return connect(shared_url)


@pytest.fixture
def blocking(shared_url, namespace):
    with sync.Backstay(shared_url, namespace=namespace) as stay:
        yield stay


def wait_for_lock(stay):
    return stay.lock(NAME).acquire()


def wait_for_read(stay):
    return stay.rwlock(NAME).read().acquire()


def wait_for_key(stay):
    return stay.idempotency.run(NAME, lambda: 1)


def wait_for_limit(stay):
    return stay.limit(NAME, "1/hour").wait("key")


def wait_for_result(stay):
    return stay.jobs.enqueue("never", {}).result()


def occupy(stay, wait):
    """Have `stay` hold what `wait` waits for; return the function that frees it."""
    if wait is wait_for_lock:
        return stay.lock(NAME).acquire().release
    if wait is wait_for_read:
        return stay.rwlock(NAME).write().acquire().release
    if wait is wait_for_key:
        free, started = threading.Event(), threading.Event()
        thread = threading.Thread(target=stay.idempotency.run, args=(NAME, lambda: (started.set(), free.wait()) and 1))
        thread.start()
        started.wait()
        return lambda: (free.set(), thread.join())
    if wait is wait_for_limit:
        stay.limit(NAME, "1/hour").hit("key")
    return lambda: None


def waiting(stay, wait):
    """How many tickets wait, as `stay` sees it."""
    if wait in (wait_for_lock, wait_for_read):
        return stay.locks.inspect(NAME).waiter_count
    if wait is wait_for_key:
        return stay.idempotency.inspect(NAME).waiters
    if wait is wait_for_limit:
        return stay.limit(NAME, "1/hour").peek("key").count - 1
    return 0


WAITS = pytest.mark.parametrize("wait", [wait_for_lock, wait_for_read, wait_for_key, wait_for_limit, wait_for_result])


@WAITS
@pytest.mark.parametrize("moment", ["asleep", "before it sleeps"])
def test_a_blocking_caller_hears_closed_at_once(blocking, other, wait, moment, monkeypatch):
    free = occupy(other, wait)
    wait_for_engine(blocking)
    try:
        held = BlockingHeldReply(blocking, monkeypatch) if moment == "before it sleeps" else None
        caller = Caller(lambda: wait(blocking))
        caller.start()
        core = blocking.internals.core
        assert eventually(lambda: held.is_held if held else core._parked)
        closing = time.monotonic()
        blocking.close()
        caller.join(60)
        assert isinstance(caller.error, Closed), caller.error
        assert caller.ended - closing < PROMPTLY
        assert waiting(other, wait) == 0
    finally:
        free()


def wait_for_engine(stay):
    """Connect, so that the held reply is that of the waiter's own command."""
    stay.open()


@WAITS
@pytest.mark.parametrize("moment", ["asleep", "before it sleeps"])
@on_a_loop
async def test_an_async_caller_hears_closed_at_once(shared_url, namespace, other, wait, moment, monkeypatch):
    free = await asyncio.to_thread(occupy, other, wait)
    try:
        async with backstay.Backstay(shared_url, namespace=namespace) as stay:
            held = AsyncHeldReply(stay, monkeypatch) if moment == "before it sleeps" else None

            async def call():
                if wait is wait_for_result:
                    return await (await stay.jobs.enqueue("never", {})).result()
                return await wait(stay)

            caller = asyncio.create_task(call())

            async def is_waiting():
                return held.is_held if held else stay.internals.core._parked

            assert await soon(is_waiting)
            closing = time.monotonic()
            await stay.close()
            with pytest.raises(Closed):
                await asyncio.wait_for(caller, 60)
            assert time.monotonic() - closing < PROMPTLY
            assert await asyncio.to_thread(waiting, other, wait) == 0
    finally:
        await asyncio.to_thread(free)


def test_many_blocking_callers_that_begin_to_wait_leave_no_ticket(shared_url, namespace, other):
    """Threads call acquire() without a pause while the Backstay closes."""
    with other.lock(NAME):
        for _ in range(3):
            stay = sync.Backstay(shared_url, namespace=namespace)
            callers = [Caller(lambda stay=stay: stay.lock(NAME).acquire()) for _ in range(8)]
            stay.open()
            for caller in callers:
                caller.start()
            closing = time.monotonic()
            stay.close()
            for caller in callers:
                caller.join(60)
                assert isinstance(caller.error, Closed), caller.error
                assert caller.ended - closing < PROMPTLY
            assert eventually(lambda: other.locks.inspect(NAME).waiter_count == 0, 1)


def test_a_lock_that_is_granted_while_the_backstay_closes_is_given_back(blocking, other, monkeypatch):
    held = BlockingHeldReply(blocking, monkeypatch)
    wait_for_engine(blocking)
    caller = Caller(lambda: blocking.lock(NAME).acquire())
    caller.start()
    assert eventually(lambda: held.is_held)
    blocking.close()
    caller.join(60)
    assert isinstance(caller.error, Closed)
    assert not other.locks.inspect(NAME).held


def test_a_blocking_listener_hears_of_the_close_at_once(blocking):
    with blocking.hub.listen("news") as messages:
        caller = Caller(messages.next)
        caller.start()
        assert eventually(lambda: blocking.internals.core._parked)
        blocking.close()
        caller.join(60)
        assert isinstance(caller.error, Closed)


def test_a_listener_that_is_being_entered_hears_of_the_close_at_once(blocking, monkeypatch):
    """The server does not confirm the subscription: entering would wait for five seconds."""
    core = blocking.internals.core
    monkeypatch.setattr(core.hub, "_open", lambda channel: None)
    caller = Caller(lambda: blocking.hub.listen("news").__enter__())
    caller.start()
    assert eventually(lambda: core._parked)
    closing = time.monotonic()
    blocking.close()
    caller.join(60)
    assert isinstance(caller.error, Closed)
    assert caller.ended - closing < PROMPTLY / 2
