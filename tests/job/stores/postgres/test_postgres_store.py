"""What is special to jobs on PostgreSQL: plans, round trips, lost commits, ends that meet, the caller's connection."""

from __future__ import annotations

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import psycopg
import pytest
from psycopg_pool import ConnectionPool

from backstay import ConfigError, EngineError, OutcomeUnknown
from backstay.engine.base import Apply, Ping, TakeHint
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.connection.pool_settings import open_pool
from backstay.engine.postgres.connection.wire import Pipeline
from backstay.engine.postgres.engine import OTHERS, PostgresEngine
from backstay.engine.postgres.notify import decode, wire_channel
from backstay.engine.postgres.pipeline.pipeline import PipelineConnection
from backstay.gate.commands import Acquire, CallerIdentity, Granted
from backstay.gate.machine import GATE
from backstay.hub.protocol import hint_key
from backstay.job.ids import Ids
from backstay.job.model import Claim, Concurrency, ExchangeCommand, Finish, NewJob, Rate, Renewal, Unique
from backstay.job.run_model import NewRun
from backstay.job.stores.postgres import claim_heuristics
from backstay.job.stores.postgres.store import PostgresStore
from backstay.testing.proxy import FaultProxy
from backstay.testing.waiting import WITHIN, eventually

pytestmark = pytest.mark.postgres

SECOND = 1_000_000
IDS = Ids()


def job(type_="work", **fields):
    return NewJob(id=IDS.new(0), type=type_, **fields)


class Worker:
    """One lane of a worker."""

    def __init__(self, engine, store, name="w", lane=0):
        self.engine, self.store, self.name, self.lane, self.seq = engine, store, name, lane, 0

    def command(self, finishes=(), want=1, lease=30 * SECOND, **claim):
        self.seq += 1
        return ExchangeCommand(
            shard=0,
            worker=self.name,
            incarnation="i",
            channel=self.lane,
            seq=self.seq,
            finishes=tuple(finishes),
            claim=Claim(want=want, lease=lease, **claim),
            not_after=self.engine.now() + 30 * SECOND,
        )

    def exchange(self, finishes=(), want=1, **claim):
        return self.engine.apply(self.store.exchange(self.command(finishes, want, **claim)))

    def until_told(self, command):
        """Sent again until there is an answer."""
        while True:
            try:
                return self.engine.apply(self.store.exchange(command))
            except EngineError:
                continue


def complete(claimed, **fields):
    return Finish(job=claimed.id, fence=claimed.fence, kind="complete", **fields)


@pytest.fixture
def store(namespace):
    return PostgresStore(namespace, namespace)


@pytest.fixture
def engine(backstay_postgres, namespace):
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    engine.apply(Ping())
    yield engine
    engine.close_blocking()


@pytest.fixture
def admin(backstay_postgres):
    with psycopg.connect(backstay_postgres.url, autocommit=True) as admin:
        yield admin


# ── the engine's part ──


def test_a_plain_exchange_is_one_round_trip(engine, store, monkeypatch):
    rounds = []
    carry_out = PipelineConnection._send_round_trip

    def counted(self, session, procedures, **options):
        rounds.append([one.next_trip.commit for one in procedures])
        carry_out(self, session, procedures, **options)

    worker = Worker(engine, store)
    engine.apply(store.enqueue(0, [job() for _ in range(20)]))
    jobs = worker.exchange(want=5).jobs
    monkeypatch.setattr(PipelineConnection, "_send_round_trip", counted)
    reply = worker.exchange(map(complete, jobs), want=5)
    assert (len(reply.jobs), reply.verdicts) == (5, ("ok",) * 5)
    assert rounds == [[True]]


def test_jobs_do_not_wait_for_gates_nor_gates_for_jobs(engine, store, admin, namespace):
    engine.apply(store.enqueue(0, [job()]))
    worker = Worker(engine, store)
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


@pytest.mark.chaos
@pytest.mark.parametrize("action", ["drop", "cut-after", "cut-before"])
def test_a_lost_commit_is_unknown_and_a_resent_exchange_gets_its_reply(
    backstay_postgres, namespace, store, engine, action
):
    with FaultProxy(backstay_postgres.port) as proxy:
        url = proxy.instead_of(backstay_postgres.url)
        far = PostgresEngine(parse(url + "?timeout=1"), namespace=namespace)
        far.apply(Ping())
        worker = Worker(far, store)
        engine.apply(store.enqueue(0, [job() for _ in range(6)]))
        first = worker.exchange(want=2)
        command = worker.command(map(complete, first.jobs), want=2)
        proxy.once(action, b"COMMIT")
        with pytest.raises(OutcomeUnknown):
            far.apply(store.exchange(command))
        reply = worker.until_told(command)
        assert reply.verdicts == ("ok", "ok")
        assert len(reply.jobs) == 2
        last = worker.exchange(map(complete, reply.jobs), want=10)
        assert last.verdicts == ("ok", "ok")
        assert len(last.jobs) == 2, "nothing is under a lease that nobody knows of"
        proxy.heal()
        far.close_blocking()


@pytest.mark.chaos
def test_terminated_backends_lose_no_job_and_repeat_none(engine, store, admin, namespace):
    total = 400
    made = [job(retries=5) for _ in range(total)]
    ids = {each.id for each in made}
    engine.apply(store.enqueue(0, made))
    done, stop = [], threading.Event()

    def work(lane):
        worker = Worker(engine, store, lane=lane)
        held = ()
        while not stop.is_set():
            reply = worker.until_told(worker.command(map(complete, held), want=7))
            assert set(reply.verdicts) <= {"ok"}
            done.extend(claimed.id for claimed in held)
            held = reply.jobs
            if not held:
                return

    def ours():
        name = "SELECT pid FROM pg_stat_activity WHERE application_name = 'backstay' AND query LIKE '%backstay_job%'"
        return [pid for (pid,) in admin.execute(name)]

    with ThreadPoolExecutor() as pool:
        lanes = [pool.submit(work, lane) for lane in (0, 1)]
        try:
            while not all(lane.done() for lane in lanes):
                before = len(done)
                eventually(lambda before=before: len(done) > before + 30 or all(lane.done() for lane in lanes))
                if pids := ours():
                    admin.execute("SELECT pg_terminate_backend(%s)", (random.choice(pids),))
        finally:
            stop.set()
        for lane in lanes:
            lane.result(30)
    assert sorted(done) == sorted(ids)


def test_a_users_pool_serves_jobs(backstay_postgres, namespace):
    with ConnectionPool(backstay_postgres.url, min_size=1, max_size=4, open=True) as pool:
        engine, store = open_pool(pool, namespace, blocking=True), PostgresStore(namespace, namespace)
        try:
            engine.apply(Ping())
            ids = [e.id for e in engine.apply(store.enqueue(0, [job() for _ in range(10)]))]
            worker = Worker(engine, store)
            reply = worker.exchange(want=10)
            assert [claimed.id for claimed in reply.jobs] == ids
            assert set(worker.exchange(map(complete, reply.jobs)).verdicts) == {"ok"}
            assert {engine.apply(store.get(id_)).state for id_ in ids} == {"completed"}
        finally:
            engine.close_blocking()
        with pool.connection() as theirs:
            (mode,) = theirs.execute("SHOW plan_cache_mode").fetchone()
            assert mode == "auto", "nothing of ours is left on a connection of theirs"


# ── ends that meet ──


@pytest.mark.slow
def test_two_blockers_that_end_at_the_same_moment_start_the_dependent_once(backstay_postgres, namespace, store):
    """Two connections, both at once, again and again: the second must see what the first has left."""
    rounds = int(os.environ.get("BACKSTAY_BLOCKER_ROUNDS", "300"))
    engines = [PostgresEngine(parse(backstay_postgres.url), namespace=namespace) for _ in range(2)]
    for each in engines:
        each.apply(Ping())
    workers = [Worker(each, PostgresStore(namespace, namespace), f"w{n}") for n, each in enumerate(engines)]
    barrier = threading.Barrier(2)

    def end(worker, claimed):
        barrier.wait()
        return worker.exchange([complete(claimed, result=claimed.id.encode())], want=0)

    try:
        with ThreadPoolExecutor(2) as pool:
            for nth in range(rounds):
                one, other = job(), job()
                dependent = job("dependent", after=(one.id, other.id))
                engines[0].apply(store.enqueue(0, [one, other, dependent]))
                mine, theirs = workers[0].exchange(want=2).jobs
                replies = list(pool.map(end, workers, (mine, theirs)))
                assert [reply.verdicts for reply in replies] == [("ok",), ("ok",)]
                assert sum(reply.ready.get("dependent", 0) for reply in replies) == 1, nth
                started = workers[nth % 2].exchange(want=5).jobs
                assert [claimed.id for claimed in started] == [dependent.id]
                assert started[0].upstream == {one.id: one.id.encode(), other.id: other.id.encode()}
                assert workers[nth % 2].exchange(map(complete, started), want=0).verdicts == ("ok",)
    finally:
        for each in engines:
            each.close_blocking()


@pytest.mark.slow
def test_a_job_enqueued_while_its_blocker_finishes_still_starts(backstay_postgres, namespace, store):
    engines = [PostgresEngine(parse(backstay_postgres.url), namespace=namespace) for _ in range(2)]
    for each in engines:
        each.apply(Ping())
    worker = Worker(engines[0], store)
    barrier = threading.Barrier(2)

    def end(claimed):
        barrier.wait()
        return worker.exchange([complete(claimed)], want=0)

    def wait(new):
        barrier.wait()
        return engines[1].apply(PostgresStore(namespace, namespace).enqueue(0, [new]))

    try:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(150):
                first = job()
                dependent = job("dependent", after=(first.id,))
                engines[0].apply(store.enqueue(0, [first]))
                (claimed,) = worker.exchange().jobs
                ended, stored = pool.submit(end, claimed), pool.submit(wait, dependent)
                assert ended.result(WITHIN).verdicts == ("ok",)
                assert stored.result(WITHIN)[0].state in ("pending", "blocked")
                (started,) = worker.exchange().jobs
                assert started.id == dependent.id
                worker.exchange([complete(started)], want=0)
    finally:
        for each in engines:
            each.close_blocking()


# ── chains that go on ──


def test_a_chain_successor_takes_no_unique_key_from_another_job(engine, store):
    """The chain goes on all the same."""
    unique = Unique("u", "until_done")
    holder, first = job(unique=unique, labels=("elsewhere",)), job()
    engine.apply(store.enqueue(0, [holder, first]))
    worker = Worker(engine, store)
    (claimed,) = worker.exchange().jobs
    (follower,) = worker.exchange([complete(claimed, next=job(unique=unique))]).jobs
    assert follower.chain == first.id
    assert engine.apply(store.get(follower.id)).unique is None
    worker.exchange([complete(follower, result=b"R")], want=0)
    assert engine.apply(store.watch(first.id, chain=True)).result == b"R"
    (again,) = engine.apply(store.enqueue(0, [job(unique=unique)]))
    assert (again.id, again.deduplicated) == (holder.id, True)


def test_waiting_for_a_chain_successor_is_a_config_error(engine, store):
    """Only the end of its chain is announced, so a job that waited for the successor alone would wait forever."""
    first = job()
    engine.apply(store.enqueue(0, [first]))
    worker = Worker(engine, store)
    (claimed,) = worker.exchange().jobs
    (follower,) = worker.exchange([complete(claimed, next=job())]).jobs
    waiting = job(after=(follower.id,))
    with pytest.raises(ConfigError, match=follower.id):
        engine.apply(store.enqueue(0, [waiting]))
    worker.exchange([complete(follower)], want=0)
    with pytest.raises(ConfigError, match=follower.id):
        engine.apply(store.enqueue(0, [waiting]))
    (stored,) = engine.apply(store.enqueue(0, [job(after=(first.id,))]))
    assert stored.state == "pending"


def test_two_chains_continued_in_one_exchange_may_wait_for_each_other(engine, store):
    one, other = job(), job()
    engine.apply(store.enqueue(0, [one, other]))
    worker = Worker(engine, store)
    mine, theirs = worker.exchange(want=2).jobs
    waits, goes = job(after=(other.id,)), job()
    (next_,) = worker.exchange([complete(mine, next=waits), complete(theirs, next=goes)], want=5).jobs
    assert next_.id == goes.id
    (next_,) = worker.exchange([complete(next_, result=b"R")], want=5).jobs
    assert (next_.id, next_.upstream) == (waits.id, {other.id: b"R"})


@pytest.mark.parametrize("ends", ["cancel", "fail", "lapse"])
def test_the_reason_of_a_cancellation_is_kept_however_its_job_ends(engine, store, ends):
    engine.apply(store.enqueue(0, [job()]))
    worker = Worker(engine, store)
    (claimed,) = worker.exchange(lease=1 if ends == "lapse" else 30 * SECOND).jobs
    engine.apply(store.cancel(claimed.id, "wrong customer"))
    if ends == "lapse":
        engine.apply(store.reap(0))
    else:
        worker.exchange([Finish(job=claimed.id, fence=claimed.fence, kind=ends)], want=0)
    ended = engine.apply(store.get(claimed.id))
    assert (ended.state, ended.error.message) == ("cancelled", "wrong customer")


# ── plans ──


def _backlog(admin, namespace, store, engine, rows):
    """Many pending jobs in one lane, some that ended: written by the server, as fast as it goes."""
    (enqueued,) = engine.apply(store.enqueue(0, [job()]))
    columns = [
        c
        for (c,) in admin.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'backstay_job'"
            " AND column_name <> 'id' ORDER BY ordinal_position"
        )
    ]
    names = ", ".join(columns)
    ended = ", ".join("'completed'" if c == "state" else c for c in columns)
    admin.execute(
        f"INSERT INTO backstay_job (id, {names}) SELECT id || '-' || lpad(n::text, 8, '0'), {names}"  # noqa: S608
        " FROM backstay_job, generate_series(1, %s) n WHERE space = %s AND id = %s",
        (rows, namespace, enqueued.id),
    )
    admin.execute(
        f"INSERT INTO backstay_job_done (id, {names}, finished, keep_until)"  # noqa: S608
        f" SELECT id || '.' || lpad(n::text, 8, '0'), {ended}, 1, 9000000000000000"
        " FROM backstay_job, generate_series(1, %s) n WHERE space = %s AND id = %s",
        (rows, namespace, enqueued.id),
    )


@pytest.fixture
def untouched(backstay_postgres, admin, namespace):
    """A database of its own, of whose tables the planner knows nothing."""
    name = namespace.replace("-", "_")
    admin.execute(f'CREATE DATABASE "{name}"')
    url = backstay_postgres.url.rpartition("/")[0] + f"/{name}"
    engine = PostgresEngine(parse(url), namespace=namespace)
    engine.apply(Ping())
    with psycopg.connect(url, autocommit=True) as inside:
        yield engine, inside
    engine.close_blocking()
    admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False], ids=["analysed", "filled after planning"])
def test_no_statement_reads_a_whole_table(untouched, store, namespace, known, monkeypatch):
    monkeypatch.setattr(claim_heuristics, "BUSY_LOOK", 60.0)
    engine, admin = untouched
    worker = Worker(engine, store)

    def everything():
        plain = [job(labels=("l",) * (n % 2)) for n in range(4)]
        engine.apply(store.enqueue(0, plain))
        engine.apply(store.enqueue(0, [job(delay=SECOND * 3600)]))
        jobs = worker.exchange(want=10, labels=("l",)).jobs
        engine.apply(store.renew(0, "w", 30 * SECOND, [Renewal(c.id, c.fence) for c in jobs]))
        finishes = [complete(c) for c in jobs[1:]] + [Finish(job=c.id, fence=c.fence, kind="retry") for c in jobs[:1]]
        worker.exchange(finishes, want=1, labels=("l",))
        engine.apply(store.enqueue(0, [job(queue="alone") for _ in range(2)]))
        assert [len(worker.exchange(want=1, queues=(("alone",),)).jobs) for _ in range(2)] == [1, 1]
        engine.apply(store.get(plain[0].id))
        engine.apply(store.reap(0))
        blocker, waiting = job(), job(delay=SECOND * 3600)
        waiting = msgspec.structs.replace(waiting, after=(blocker.id,))
        engine.apply(store.enqueue(0, [blocker, waiting]))
        engine.apply(store.cancel(blocker.id, "why not"))
        engine.apply(store.trigger(blocker.id))
        engine.apply(store.append_log(blocker.id, 0, [(1, "out", "x")], 1))
        engine.apply(store.cancel(blocker.id, "why not"))
        engine.apply(store.purge("cancelled", limit=1))
        run = IDS.new(0)
        first, then = job(run=run), job(run=run)
        last = job(run=run, after=(first.id, then.id))
        engine.apply(store.start_run(NewRun(id=run, workflow="w", jobs=(first, then, last), keep=1)))
        mine = [c for c in worker.exchange(want=100, labels=("l",)).jobs if c.run == run]
        added = job(after=(first.id,))
        worker.exchange([complete(c, adds=(added,)) for c in mine[:1]] + [complete(c) for c in mine[1:]], want=0)
        engine.apply(store.cancel_run(run, "why not"))
        engine.apply(store.rerun_failed(run))
        engine.apply(store.list_runs(workflow="w"))
        engine.apply(store.list_runs(status="running"))
        engine.apply(store.run_events(run))
        engine.apply(store.events(0))
        engine.apply(store.cancel_run(run, "why not"))
        engine.apply(store.check_runs(0))
        engine.apply(store.prune(0, keep=10, limit=5))

    everything()
    lanes = [engine._store_connections[0].connection, engine._store_connections[OTHERS].connection]
    if known:
        _backlog(admin, namespace, store, engine, 20_000)
        admin.execute("ANALYZE")
        for lane in lanes:  # planned anew
            lane._session.until = float("inf")
            lane._session.execute("DISCARD PLANS")
    everything()
    if not known:
        _backlog(admin, namespace, store, engine, 20_000)
    plans = []
    for lane in lanes:
        session = lane._session
        session.until = float("inf")
        session.execute("LOAD 'auto_explain'")
        session.execute("SET auto_explain.log_min_duration = 0")
        session.execute("SET auto_explain.log_analyze = on")
        session.execute("SET client_min_messages = log")
        session.add_notice_handler(lambda note: plans.append(note.message_primary))
    everything()
    seen = "\n".join(plans)
    assert "backstay_job_ready" in seen
    assert any("FROM near, mine" in plan for plan in plans)
    for plan in plans:
        assert "Seq Scan" not in plan, plan
        for line in plan.splitlines():
            read = [int(part.split("rows=")[1].split()[0]) for part in line.split("(actual ")[1:] if "rows=" in part]
            assert all(rows < 5000 for rows in read), plan
    finish = next(plan for plan in plans if "gone AS ( DELETE FROM backstay_job" in plan)
    assert "backstay_job_lease" not in finish
    assert "Rows Removed by Filter: 20" not in seen


# ── limits ──


def test_jobs_with_a_full_key_are_parked_once(engine, store, admin, namespace):
    key = Concurrency("k", 1)
    engine.apply(store.enqueue(0, [job("keyed", concurrency=key) for _ in range(2000)]))
    engine.apply(store.enqueue(0, [job("free")]))
    worker = Worker(engine, store)
    assert [c.type for c in worker.exchange(want=2).jobs] == ["keyed", "free"]
    (parked,) = admin.execute(
        "SELECT count(*) FROM backstay_job WHERE space = %s AND state = 'parked'", (namespace,)
    ).fetchone()
    assert parked == 1999


def test_concurrent_claims_never_exceed_a_concurrency_key_or_rate(engine, store):
    engine.apply(store.enqueue(0, [job(concurrency=Concurrency("k", 3)) for _ in range(60)]))
    engine.apply(store.enqueue(0, [job(queue="rated", rate=Rate("r", 3600 * SECOND, 5)) for _ in range(60)]))
    workers = [Worker(engine, store, f"w{n}", lane=n) for n in range(2)]
    queues = (("default", "rated"),)
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda worker: [worker.exchange(want=5, queues=queues) for _ in range(10)], workers))
    claimed = [c for mine in replies for reply in mine for c in reply.jobs]
    assert sum(c.queue == "default" for c in claimed) == 3
    assert sum(c.queue == "rated" for c in claimed) == 5


@pytest.mark.chaos
def test_a_killed_server_loses_no_finished_exchange(namespace):
    from backstay.testing.servers.postgres import PostgresServer

    with PostgresServer() as server:
        store = PostgresStore(namespace, namespace)
        engine = PostgresEngine(parse(server.url + "?timeout=2"), namespace=namespace)
        engine.apply(Ping())
        engine.apply(store.enqueue(0, [job() for _ in range(30)]))
        worker = Worker(engine, store)
        held = worker.exchange(
            map(complete, worker.exchange(want=5).jobs), want=5
        ).jobs  # it has ended something: it is on disk
        command = worker.command(map(complete, held), want=5)
        os.kill(server.pid, signal.SIGKILL)
        server.restart()
        reply = worker.until_told(command)
        assert reply.verdicts == ("ok",) * 5
        rest = worker.exchange(map(complete, reply.jobs), want=100)
        assert len(rest.jobs) == 15
        engine.close_blocking()


def test_an_announcement_and_its_jobs_share_one_round_trip(engine, store, backstay_postgres, namespace, monkeypatch):
    with psycopg.connect(backstay_postgres.url, autocommit=True) as ear:
        ear.execute(f"LISTEN {wire_channel(f'{namespace}:sched')}".encode())
        engine.apply(store.enqueue(0, [job()]))  # lanes are known, statements prepared
        sent = []
        begin = Pipeline.begin
        monkeypatch.setattr(
            Pipeline, "begin", lambda self, statements: sent.append(statements) or begin(self, statements)
        )
        engine.apply(store.enqueue(0, [job(), job()], announce=True))
        assert len(sent) == 1
        (heard,) = ear.notifies(timeout=WITHIN, stop_after=1)
    said = decode(heard.payload)
    hint, _, kind = said.payload.partition(":")
    assert (said.inbox, kind) == (f"{namespace}:sched", "work")
    assert engine.apply_many([TakeHint(hint_key(namespace, hint), n, 60 * SECOND) for n in (1, 5)]) == [1, 1]


def test_an_announcement_that_fails_harms_no_job(engine, store, backstay_postgres, namespace):
    """A user-defined trigger, or a missing right."""
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
    assert {claimed.id for claimed in Worker(engine, store).exchange(want=5).jobs} == {one.id for one in made}


def test_a_worker_that_cached_one_lane_sees_a_new_lane(engine, store):
    worker = Worker(engine, store)
    engine.apply(store.enqueue(0, [job() for _ in range(6)]))
    for _ in range(3):  # served in full, from the only lane there is
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
    worker = Worker(engine, store)
    engine.apply(store.enqueue(0, [job() for _ in range(6)]))
    for _ in range(2):
        assert len(worker.exchange().jobs) == 1
    engine.apply(store.pause("default", paused=True))
    assert worker.exchange().jobs == ()
    assert worker.exchange().jobs == ()
