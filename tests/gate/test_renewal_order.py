"""All renewals of a lease have one order: the latest TTL counts, whichever renewal arrives last."""

from __future__ import annotations

import asyncio
import random
import threading

from clocked_gate import SECOND

from backstay import Backstay
from backstay.engine.base import steady
from backstay.gate.commands import Granted, Lost, Renew, Renewed
from backstay.runtime.lease import MARGIN
from backstay.sync import Backstay as BlockingBackstay

NAME = "invoice:42"


def test_a_shorter_ttl_takes_effect(gate):
    gate.acquire("a", ttl=60 * SECOND)
    assert gate.renew("a", ttl=2 * SECOND, ttl_number=1) == Renewed(gate.now + 2 * SECOND, gate.now, 1)
    gate.now += 2 * SECOND
    assert isinstance(gate.acquire("b"), Granted)


def test_a_renewal_that_the_new_ttl_overtook_changes_nothing(gate):
    gate.acquire("a", ttl=60 * SECOND)
    ends = gate.now + 2 * SECOND
    gate.renew("a", ttl=2 * SECOND, ttl_number=2)
    gate.now += SECOND
    assert gate.renew("a", ttl=60 * SECOND, ttl_number=1) == Renewed(ends, gate.now, 2)
    assert gate.renew("a", ttl=60 * SECOND) == Renewed(ends, gate.now, 2)


def test_a_delayed_copy_of_a_renewal_never_shortens_the_lease(gate):
    gate.acquire("a", ttl=5 * SECOND)
    gate.renew("a", ttl=60 * SECOND, ttl_number=1)
    ends = gate.now + 60 * SECOND
    assert gate.renew("a", ttl=3 * SECOND, ttl_number=1) == Renewed(ends, gate.now, 1)
    assert gate.renew("a", ttl=3 * SECOND) == Renewed(ends, gate.now, 1)


def test_a_delayed_copy_of_the_acquire_does_not_undo_a_shorter_ttl(gate):
    gate.acquire("a", ttl=60 * SECOND)
    gate.renew("a", ttl=2 * SECOND, ttl_number=1)
    ends = gate.now + 2 * SECOND
    assert gate.acquire("a", ttl=60 * SECOND).until == ends
    gate.now = ends
    assert isinstance(gate.renew("a", ttl=60 * SECOND, ttl_number=2), Lost)


def test_the_keeper_uses_the_latest_ttl_and_a_crash_frees_the_lock_within_it(engine_url, namespace):
    async def scenario():
        async with Backstay(engine_url, namespace=namespace) as stay:
            lease = await stay.lock(NAME, ttl=300).acquire()
            await lease.renew(ttl=1.5)
            assert lease.ttl == 1.5
            assert lease.remaining() <= 1.5
            (holder,) = (await stay.locks.inspect(NAME)).holders
            first = holder.expires_at
            while holder.expires_at == first:  # until the keeper has renewed it
                await asyncio.sleep(0.02)
                (holder,) = (await stay.locks.inspect(NAME)).holders
            lease.check()
            stay._core.keeper.discard(lease)  # as if the process had died
            async with Backstay(engine_url, namespace=namespace) as other:
                assert await other.lock(NAME).acquire(wait=10)

    asyncio.run(scenario())


def test_the_holder_never_believes_more_than_the_engine_has(engine_url, namespace):
    """Renewals by the holder and by the keeper's thread, at the same time, with changing TTLs."""
    dice = random.Random(7)
    stay = BlockingBackstay(engine_url, namespace=namespace)
    with stay:
        lease = stay.lock(NAME, ttl=30).acquire()
        core = lease.core
        done = threading.Event()

        def keep():
            while not done.is_set():
                lease.due = 0.0
                core.keeper.tick()

        keeper = threading.Thread(target=keep)
        keeper.start()
        try:
            for _ in range(60):
                ttl = dice.choice((8, 15, 40, 90))
                lease.renew(ttl=ttl)
                assert lease.ttl == ttl
                before = steady()
                believed = (lease.deadline - before) / (1 - MARGIN)
                (reply,) = core.engine.apply_many(
                    [lease.renewal(core.engine.now() + 10 * SECOND, 0.001)]
                )  # too short to extend anything: it reads the end of the lease
                assert isinstance(reply, Renewed)
                assert believed <= (reply.until - reply.now) / SECOND + (steady() - before) + 0.001
        finally:
            done.set()
            keeper.join()
        lease.release()


def test_an_unconfirmed_ttl_is_learned_from_the_next_renewal(engine_url, namespace):
    """The reply to renew(ttl) was lost for good: the keeper's next renewal finds out which TTL the engine applies."""
    with BlockingBackstay(engine_url, namespace=namespace) as stay:
        lease = stay.lock(NAME, ttl=30).acquire()
        number = lease.number_ttl(6.0)
        engine = lease.core.engine
        (reply,) = engine.apply_many([lease.renewal(engine.now() + 10 * SECOND, 6.0, number)])
        assert isinstance(reply, Renewed)  # the lease object did not see this renewal
        assert isinstance(lease.renewal(0, lease.ttl).command, Renew)
        lease.due = 0.0
        lease.core.keeper.tick()
        assert lease.ttl == 6.0
        assert lease.remaining() <= 6.0
        lease.due = 0.0
        lease.core.keeper.tick()
        assert 4.0 < lease.remaining() <= 6.0
        lease.release()
