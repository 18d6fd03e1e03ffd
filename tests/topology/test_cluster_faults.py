"""Faults of a Cluster: masters are killed, slots move under load, clocks differ. Clients continue, and no acknowledged
lock is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest
from node_names import names_on, one_on_each, slot

import backstay
import backstay.sync
from backstay import EngineError, OutcomeUnknown
from backstay.engine.redis.address import HostPort
from backstay.runtime.lost_replies import COMMAND_LIFE
from backstay.testing.servers import RedisCluster, say
from backstay.testing.waiting import WITHIN, eventually, soon
from support.servers import running

pytestmark = [pytest.mark.redis, pytest.mark.chaos]


def await_replication(cluster):
    """Wait until the replicas have all writes so far, so that a failover loses none of them."""
    for node in cluster.masters():
        say(node, "WAIT", 1, 1000)


def test_waiters_and_holders_continue_after_a_master_is_killed(cluster):
    """Threads and tasks hold and wait for a name of the killed master and for names of the others."""
    names = list(one_on_each(cluster).values())

    async def main():
        async with backstay.Backstay(cluster.url) as stay:
            held = {name: await stay.lock(name, ttl=60).acquire(wait=0) for name in names}
            fences = {name: [] for name in names}

            async def wait(name):
                async with stay.lock(name, wait=60) as lease:
                    fences[name].append(lease.fence)

            def block(name):
                with backstay.sync.Backstay(cluster.url) as blocking, blocking.lock(name, wait=60) as lease:
                    fences[name].append(lease.fence)

            tasks = [asyncio.create_task(wait(name)) for name in names]
            threads = [threading.Thread(target=block, args=(name,)) for name in names]
            for thread in threads:
                thread.start()

            async def all_queued():
                return all([len((await stay.locks.inspect(name)).queue) == 2 for name in names])

            assert await soon(all_queued)
            await asyncio.to_thread(await_replication, cluster)
            old = cluster.master_of(slot(names[0]))
            old.kill()
            await asyncio.to_thread(cluster.await_failover, old)
            for lease in held.values():
                await lease.renew()
                assert not lease.is_lost
            assert await all_queued()
            for lease in held.values():
                assert (await lease.release()).idempotent is False
            await asyncio.gather(*tasks)
            await asyncio.to_thread(lambda: [thread.join() for thread in threads])
            return {name: [held[name].fence, *fences[name]] for name in names}

    for fences in asyncio.run(main()).values():
        assert len(fences) == 3
        assert fences == sorted(set(fences))


@pytest.mark.parametrize("api", ["async", "blocking"])
def test_the_engine_itself_waits_for_a_failover(cluster, api):
    """The policy allows no retries. The Cluster serves no slot during the failover, also not those of live masters."""
    names = list(one_on_each(cluster).values())
    no_retries = backstay.Policy(lock_retries=0)

    def kill():
        await_replication(cluster)
        cluster.master_of(slot(names[0])).kill()
        alive = next(node for node in cluster.masters() if node.running)
        assert eventually(lambda: b"cluster_state:fail" in say(alive, "CLUSTER", "INFO"), 20)

    async def acquire_async():
        async with backstay.Backstay(cluster.url, profile=no_retries) as stay:
            for name in names:
                await (await stay.lock(name).acquire(wait=0)).release()
            await asyncio.to_thread(kill)
            leases = await asyncio.gather(*[stay.lock(name).acquire(wait=WITHIN) for name in reversed(names)])
            return [lease.name for lease in leases]

    if api == "async":
        assert asyncio.run(acquire_async()) == names[::-1]
        return
    with backstay.sync.Backstay(cluster.url, profile=no_retries) as stay:
        for name in names:
            stay.lock(name).acquire(wait=0).release()
        kill()
        assert [stay.lock(name).acquire(wait=WITHIN).name for name in reversed(names)] == names[::-1]


def test_leases_on_other_nodes_are_renewed_while_one_node_is_paused():
    """The keeper sends renewals to all nodes at once, so a paused node does not delay those to the others."""
    with running(RedisCluster(replicas=0, options=("--cluster-require-full-coverage", "no"))) as group:
        (paused, lost_name), *others = one_on_each(group).items()
        with backstay.sync.Backstay(group.url) as stay:
            stay.lock(lost_name, ttl=4).acquire(wait=0)
            leases = [stay.lock(name, ttl=4).acquire(wait=0) for _, name in others]
            paused.pause()
            end = time.monotonic() + 9  # longer than two TTLs
            while time.monotonic() < end:
                assert not any(lease.is_lost for lease in leases)
                time.sleep(0.05)
            for lease in leases:
                assert lease.release().idempotent is False


def test_slots_that_migrate_under_load_lose_no_update(cluster):
    """Threads and tasks increment counters, each under its lock with a separate read and write, while slots move."""
    masters = cluster.masters()
    names = [name for node in masters for name in names_on(cluster, node, 2, prefix="busy")]
    counts, fences = dict.fromkeys(names, 0), {name: [] for name in names}
    stopping = threading.Event()
    done = []

    def count(name, fence):
        value = counts[name]
        time.sleep(0)  # with two holders at once, an update would be lost here
        counts[name] = value + 1
        fences[name].append(fence)

    def blocking():
        increments = 0
        with backstay.sync.Backstay(cluster.url) as stay:
            while not stopping.is_set():
                for name in names:
                    with stay.lock(name, wait=WITHIN) as lease:
                        count(name, lease.fence)
                        increments += 1
        done.append(increments)

    async def awaiting():
        async with backstay.Backstay(cluster.url) as stay:

            async def one():
                increments = 0
                while not stopping.is_set():
                    for name in names:
                        async with stay.lock(name, wait=WITHIN) as lease:
                            await asyncio.sleep(0)
                            count(name, lease.fence)
                            increments += 1
                done.append(increments)

            await asyncio.gather(one(), one())

    threads = [threading.Thread(target=blocking), threading.Thread(target=blocking)]
    threads.append(threading.Thread(target=lambda: asyncio.run(awaiting())))
    for thread in threads:
        thread.start()
    try:
        for name in names:
            source = cluster.master_of(slot(name))
            target = masters[(masters.index(source) + 1) % 3]
            cluster.migrate(slot(name), target, pause=0.05)
            assert cluster.master_of(slot(name)) is target
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    assert len(done) == 4
    assert sum(done) == sum(counts.values()) > len(names) * 4
    for name in names:
        assert fences[name] == sorted(set(fences[name]))


def test_a_subscription_resumes_after_its_node_dies(cluster):
    with backstay.sync.Backstay(cluster.url) as stay, stay.hub.listen("news") as news:
        port = stay._core.hub._stream._link.address.port
        node = next(node for node in cluster.nodes if node.port == port)
        node.kill()

        def is_received():
            with contextlib.suppress(EngineError):
                stay.hub.publish("news", "after")
            message = news.next(0.2)
            return message is not None and message.payload == "after"

        assert eventually(is_received, 20)


def test_a_node_that_comes_back_is_used_again(cluster):
    """The node is killed and replaced, returns as a replica, and becomes master again when its successor is killed."""
    node, name = next(iter(one_on_each(cluster).items()))
    with backstay.sync.Backstay(cluster.url) as stay:
        leases = [stay.lock(name, wait=0).acquire()]
        leases[-1].release()
        node.kill()
        cluster.await_failover(node)
        successor = cluster.master_of(slot(name))
        leases.append(stay.lock(name, wait=WITHIN).acquire())
        leases[-1].release()
        node.start()
        cluster.await_whole()
        assert node not in cluster.masters()
        await_replication(cluster)
        successor.kill()
        cluster.await_failover(successor)
        assert cluster.master_of(slot(name)) is node
        leases.append(stay.lock(name, wait=WITHIN).acquire())
        leases[-1].release()
    assert [lease.fence for lease in leases] == sorted({lease.fence for lease in leases})


def test_nodes_may_have_different_clocks(clocks_apart, take):
    """No node rejects a command as expired: its deadline follows the clock that is furthest ahead."""
    times = sorted(int(say(node, "TIME")[0]) for node in clocks_apart.masters())
    assert times[2] - times[0] > 190
    names = one_on_each(clocks_apart)
    with backstay.sync.Backstay(clocks_apart.url) as stay:
        for _ in range(2):
            for node, name in names.items():
                with stay.lock(name, wait=0) as lease:
                    assert abs(lease.fence / 1_000_000 - int(say(node, "TIME")[0])) < 5
        assert stay.telemetry.counts["engine.resend"] == stay.telemetry.counts["engine.retry"] == 0
        furthest = max(int(say(node, "TIME")[0]) for node in names)
        assert abs(stay.engine.now() / 1_000_000 - furthest) < 5
    for name in names.values():
        assert take(clocks_apart.url, name) > 0


def test_a_node_with_a_fast_clock_corrects_the_clients_estimate_of_that_node_only(clocks_apart):
    names = one_on_each(clocks_apart)
    with backstay.sync.Backstay(clocks_apart.url) as stay:
        for name in names.values():
            stay.lock(name, wait=0).acquire().release()
        ahead = max(names, key=lambda node: int(say(node, "TIME")[0]))
        clocks = stay.engine._clocks
        others = {place: offset for place, offset in clocks.items() if place.port != ahead.port}
        stay.engine._set_clock(HostPort("127.0.0.1", ahead.port), min(clocks.values()) - 1000)
        assert stay.engine.now() / 1_000_000 + COMMAND_LIFE < int(say(ahead, "TIME")[0])
        stay.lock(names[ahead], wait=0).acquire().release()
        assert abs(stay.engine.now() / 1_000_000 - int(say(ahead, "TIME")[0])) < 5
        assert clocks[HostPort("127.0.0.1", ahead.port)] == max(clocks.values())
        assert {place: clocks[place] for place in others} == others


def test_a_reply_lost_with_its_master_is_retried_at_the_new_master(cluster):
    """The master may have applied the request before it died. The request is sent again with the same ticket, so that
    it takes effect once.
    """
    node, name = next(iter(one_on_each(cluster).items()))
    with backstay.sync.Backstay(cluster.url) as stay:
        stay.lock(name, wait=0).acquire().release()
        await_replication(cluster)
        node.kill()
        with contextlib.suppress(OutcomeUnknown), stay.lock(name, wait=WITHIN) as lease:
            assert lease.fence > 0
            assert [holder.lock_id for holder in stay.locks.inspect(name).holders] == [lease.id]
        assert eventually(lambda: not stay.locks.inspect(name).holders)
