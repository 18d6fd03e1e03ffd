"""Jobs on PostgreSQL, beyond the conformance suite: round trips, pools, chains, limits, announcements, cached lanes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from postgres_store_client import job
from psycopg_pool import ConnectionPool

from backstay import ConfigError
from backstay.engine.base import Apply, Ping, TakeHint
from backstay.engine.postgres.connection.pool_settings import open_pool
from backstay.engine.postgres.connection.wire import Pipeline
from backstay.engine.postgres.notify import decode, wire_channel
from backstay.gate.commands import Acquire, CallerIdentity, Granted
from backstay.gate.machine import GATE
from backstay.hub.protocol import hint_key
from backstay.job.model import Concurrency, Unique
from backstay.job.stores.postgres.store import PostgresStore
from backstay.testing.waiting import WITHIN
from support.store_client import SECOND, StoreClient, finish

pytestmark = pytest.mark.postgres


def test_a_plain_exchange_is_one_round_trip(engine, store, round_trips):
    worker = StoreClient(engine, store)
    engine.apply(store.enqueue(0, [job() for _ in range(20)]))
    jobs = worker.exchange(want=5).jobs
    round_trips.clear()
    reply = worker.exchange(map(finish, jobs), want=5)
    assert (len(reply.jobs), reply.verdicts) == (5, ("ok",) * 5)
    assert round_trips == [[True]]


def test_jobs_do_not_wait_for_gates_nor_gates_for_jobs(engine, store, admin, namespace):
    engine.apply(store.enqueue(0, [job()]))
    worker = StoreClient(engine, store)
    worker.exchange(want=0)
    with admin.transaction():
        admin.execute("LOCK TABLE backstay_job IN ACCESS EXCLUSIVE MODE")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(worker.exchange)
            acquire = Acquire(engine.now() + 60 * SECOND, "t", "t", True, 1, 60 * SECOND, "i", 9, CallerIdentity())
            assert isinstance(engine.apply(Apply(GATE, "x", acquire)), Granted)
            assert not waiting.done()
            admin.execute("ROLLBACK")
            assert len(waiting.result(WITHIN).jobs) == 1


def test_a_users_pool_serves_jobs(backstay_postgres, namespace):
    with ConnectionPool(backstay_postgres.url, min_size=1, max_size=4, open=True) as pool:
        engine, store = open_pool(pool, namespace, blocking=True), PostgresStore(namespace, namespace)
        try:
            engine.apply(Ping())
            ids = [e.id for e in engine.apply(store.enqueue(0, [job() for _ in range(10)]))]
            worker = StoreClient(engine, store)
            reply = worker.exchange(want=10)
            assert [claimed.id for claimed in reply.jobs] == ids
            assert set(worker.exchange(map(finish, reply.jobs)).verdicts) == {"ok"}
            assert {engine.apply(store.get(id_)).state for id_ in ids} == {"completed"}
        finally:
            engine.close_blocking()
        with pool.connection() as connection:
            (mode,) = connection.execute("SHOW plan_cache_mode").fetchone()
            assert mode == "auto", "the engine restores the settings of the pool's connections"


def test_a_chain_successor_takes_no_unique_key_from_another_job(engine, store):
    """The successor is stored without the key, since the exchange that completes its predecessor must not fail."""
    unique = Unique("u", "until_done")
    holder, first = job(unique=unique, labels=("elsewhere",)), job()
    engine.apply(store.enqueue(0, [holder, first]))
    worker = StoreClient(engine, store)
    (claimed,) = worker.exchange().jobs
    (follower,) = worker.exchange([finish(claimed, next=job(unique=unique))]).jobs
    assert follower.chain == first.id
    assert engine.apply(store.get(follower.id)).unique is None
    worker.exchange([finish(follower, result=b"R")], want=0)
    assert engine.apply(store.watch(first.id, chain=True)).result == b"R"
    (again,) = engine.apply(store.enqueue(0, [job(unique=unique)]))
    assert (again.id, again.deduplicated) == (holder.id, True)


def test_waiting_for_a_chain_successor_is_a_config_error(engine, store):
    """Only the end of its chain is announced, so a job that waited for the successor alone would wait forever."""
    first = job()
    engine.apply(store.enqueue(0, [first]))
    worker = StoreClient(engine, store)
    (claimed,) = worker.exchange().jobs
    (follower,) = worker.exchange([finish(claimed, next=job())]).jobs
    waiting = job(after=(follower.id,))
    with pytest.raises(ConfigError, match=follower.id):
        engine.apply(store.enqueue(0, [waiting]))
    worker.exchange([finish(follower)], want=0)
    with pytest.raises(ConfigError, match=follower.id):
        engine.apply(store.enqueue(0, [waiting]))
    (stored,) = engine.apply(store.enqueue(0, [job(after=(first.id,))]))
    assert stored.state == "pending"


def test_two_chains_continued_in_one_exchange_may_wait_for_each_other(engine, store):
    one, other = job(), job()
    engine.apply(store.enqueue(0, [one, other]))
    worker = StoreClient(engine, store)
    first, second = worker.exchange(want=2).jobs
    blocked, free = job(after=(other.id,)), job()
    (next_,) = worker.exchange([finish(first, next=blocked), finish(second, next=free)], want=5).jobs
    assert next_.id == free.id
    (next_,) = worker.exchange([finish(next_, result=b"R")], want=5).jobs
    assert (next_.id, next_.upstream) == (blocked.id, {other.id: b"R"})


@pytest.mark.parametrize("end", ["cancel", "fail", "expire"])
def test_the_reason_of_a_cancellation_is_kept_however_its_job_ends(engine, store, end):
    engine.apply(store.enqueue(0, [job()]))
    worker = StoreClient(engine, store)
    (claimed,) = worker.exchange(lease=1 if end == "expire" else 30 * SECOND).jobs
    engine.apply(store.cancel(claimed.id, "wrong customer"))
    if end == "expire":
        engine.apply(store.reap(0))
    else:
        worker.exchange([finish(claimed, end)], want=0)
    ended = engine.apply(store.get(claimed.id))
    assert (ended.state, ended.error.message) == ("cancelled", "wrong customer")


def test_jobs_with_a_full_key_are_parked_once(engine, store, admin, namespace):
    key = Concurrency("k", 1)
    engine.apply(store.enqueue(0, [job("keyed", concurrency=key) for _ in range(2000)]))
    engine.apply(store.enqueue(0, [job("free")]))
    worker = StoreClient(engine, store)
    assert [c.type for c in worker.exchange(want=2).jobs] == ["keyed", "free"]
    (parked,) = admin.execute(
        "SELECT count(*) FROM backstay_job WHERE space = %s AND state = 'parked'", (namespace,)
    ).fetchone()
    assert parked == 1999


def test_an_announcement_and_its_jobs_share_one_round_trip(engine, store, backstay_postgres, namespace, monkeypatch):
    with psycopg.connect(backstay_postgres.url, autocommit=True) as listener:
        listener.execute(f"LISTEN {wire_channel(f'{namespace}:sched')}".encode())
        engine.apply(store.enqueue(0, [job()]))  # caches the lane and prepares the statements
        sent = []
        begin = Pipeline.begin
        monkeypatch.setattr(
            Pipeline, "begin", lambda self, statements: sent.append(statements) or begin(self, statements)
        )
        engine.apply(store.enqueue(0, [job(), job()], announce=True))
        assert len(sent) == 1
        (notification,) = listener.notifies(timeout=WITHIN, stop_after=1)
    message = decode(notification.payload)
    hint, _, kind = message.payload.partition(":")
    assert (message.inbox, kind) == (f"{namespace}:sched", "work")
    assert engine.apply_many([TakeHint(hint_key(namespace, hint), n, 60 * SECOND) for n in (1, 5)]) == [1, 1]


def test_a_failed_announcement_does_not_undo_the_enqueue(engine, store, backstay_postgres, namespace):
    """A trigger of a user, or a missing right, may make the announcement fail."""
    engine.apply(store.enqueue(0, []))
    with psycopg.connect(backstay_postgres.url, autocommit=True) as db:
        trigger = f"refuse_{namespace.replace('-', '_')}"
        db.execute(
            f"CREATE FUNCTION {trigger}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$BEGIN IF NEW.hint LIKE '{namespace}:%' THEN RAISE 'no'; END IF; RETURN NEW; END$$".encode()
        )
        db.execute(
            f"CREATE TRIGGER {trigger} BEFORE INSERT ON backstay_hint_counter FOR EACH ROW"
            f" EXECUTE FUNCTION {trigger}()".encode()
        )
        try:
            made = [engine.apply(store.enqueue(0, [job()], announce=True))[0] for _ in range(2)]
        finally:
            db.execute(f"DROP FUNCTION {trigger} CASCADE".encode())
    assert [one.state for one in made] == ["pending", "pending"]
    assert {claimed.id for claimed in StoreClient(engine, store).exchange(want=5).jobs} == {one.id for one in made}


def test_a_worker_that_cached_one_lane_sees_a_new_lane(engine, store):
    worker = StoreClient(engine, store)
    engine.apply(store.enqueue(0, [job() for _ in range(6)]))
    for _ in range(3):  # each claim is satisfied from the only lane, which the store caches
        assert len(worker.exchange(labels=("gpu",)).jobs) == 1
    urgent = job(labels=("gpu",), priority=5)
    engine.apply(store.enqueue(0, [urgent]))
    assert [claimed.id for claimed in worker.exchange(labels=("gpu",)).jobs] == [urgent.id]
    keyed = job(priority=9, concurrency=Concurrency("k", 1))
    engine.apply(store.enqueue(0, [keyed]))
    assert [claimed.id for claimed in worker.exchange(labels=("gpu",)).jobs] == [keyed.id]
    engine.apply(store.pause("default", paused=True))
    assert worker.exchange(labels=("gpu",)).jobs == ()


def test_a_paused_queue_hands_out_nothing_to_a_worker_that_cached_one_lane(engine, store):
    worker = StoreClient(engine, store)
    engine.apply(store.enqueue(0, [job() for _ in range(6)]))
    for _ in range(2):
        assert len(worker.exchange().jobs) == 1
    engine.apply(store.pause("default", paused=True))
    assert worker.exchange().jobs == ()
    assert worker.exchange().jobs == ()
