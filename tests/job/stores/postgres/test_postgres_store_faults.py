"""Exchanges on PostgreSQL while commits are lost, backends are terminated and the server is killed."""

from __future__ import annotations

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from postgres_store_client import PostgresStoreClient, exchange_until_reply, job

from backstay import OutcomeUnknown
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers.postgres import PostgresServer
from backstay.testing.waiting import eventually
from support.store_client import StoreClient, finish

pytestmark = pytest.mark.postgres


@pytest.mark.chaos
@pytest.mark.parametrize("action", ["drop", "cut-after", "cut-before"])
def test_a_lost_commit_is_unknown_and_a_resent_exchange_gets_its_reply(
    backstay_postgres, namespace, store, engine, action
):
    with FaultProxy(backstay_postgres.port) as proxy:
        url = proxy.instead_of(backstay_postgres.url)
        worker = PostgresStoreClient(url + "?timeout=1", namespace)
        engine.apply(store.enqueue(0, [job() for _ in range(6)]))
        first = worker.exchange(want=2)
        command = worker.command(map(finish, first.jobs), want=2)
        proxy.once(action, b"COMMIT")
        with pytest.raises(OutcomeUnknown):
            worker.apply("exchange", command)
        reply = exchange_until_reply(worker, command)
        assert reply.verdicts == ("ok", "ok")
        assert len(reply.jobs) == 2
        last = worker.exchange(map(finish, reply.jobs), want=10)
        assert last.verdicts == ("ok", "ok")
        assert len(last.jobs) == 2, "no job is left under a lease that its worker did not receive"
        proxy.heal()
        worker.close()


@pytest.mark.chaos
def test_terminated_backends_lose_no_job_and_repeat_none(engine, store, admin, namespace):
    total = 400
    made = [job(retries=5) for _ in range(total)]
    ids = {each.id for each in made}
    engine.apply(store.enqueue(0, made))
    done, stop = [], threading.Event()

    def work(channel):
        worker = StoreClient(engine, store, channel=channel)
        running = ()
        while not stop.is_set():
            reply = exchange_until_reply(worker, worker.command(map(finish, running), want=7))
            assert set(reply.verdicts) <= {"ok"}
            done.extend(claimed.id for claimed in running)
            running = reply.jobs
            if not running:
                return

    def engine_backends():
        name = "SELECT pid FROM pg_stat_activity WHERE application_name = 'backstay' AND query LIKE '%backstay_job%'"
        return [pid for (pid,) in admin.execute(name)]

    with ThreadPoolExecutor() as pool:
        channels = [pool.submit(work, channel) for channel in (0, 1)]
        try:
            while not all(channel.done() for channel in channels):
                before = len(done)
                eventually(lambda before=before: len(done) > before + 30 or all(one.done() for one in channels))
                if pids := engine_backends():
                    admin.execute("SELECT pg_terminate_backend(%s)", (random.choice(pids),))
        finally:
            stop.set()
        for channel in channels:
            channel.result(30)
    assert sorted(done) == sorted(ids)


@pytest.mark.chaos
def test_a_killed_server_loses_no_finished_exchange(namespace):
    with PostgresServer() as server:
        worker = PostgresStoreClient(server.url + "?timeout=2", namespace)
        worker.apply("enqueue", 0, [job() for _ in range(30)])
        # An exchange that finishes jobs waits for the disk, so its claims are durable, too.
        jobs = worker.exchange(map(finish, worker.claim(5)), want=5).jobs
        command = worker.command(map(finish, jobs), want=5)
        os.kill(server.pid, signal.SIGKILL)
        server.restart()
        reply = exchange_until_reply(worker, command)
        assert reply.verdicts == ("ok",) * 5
        others = worker.exchange(map(finish, reply.jobs), want=100)
        assert len(others.jobs) == 15
        worker.close()
