"""Jobs on SQLite, beyond the conformance suite: counts, lanes, large arguments, transactions, several processes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import msgspec
import pytest

from backstay.engine.base import Ping
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import ConfigError
from backstay.job.model import Concurrency, NewJob, StartRate, Unique
from backstay.job.stores.sqlite.columns import COLUMNS
from backstay.job.stores.sqlite.store import SqliteStore
from support.store_client import finish


def test_counts_agree_with_the_jobs(client):
    """The counts are stored and updated with every change, so they must agree with the jobs after any sequence."""
    for n in range(10):
        client.add(
            type=f"t{n % 3}",
            retries=n % 2,
            delay=1_000_000 if n == 3 else 0,
            concurrency=Concurrency("k", 1) if n % 2 else None,
            unique=Unique(f"u{n}", "until_done"),
            rate=StartRate("b", 1_000_000, 5) if n == 4 else None,
        )
    first = client.add()
    client.add(after=(first,))
    jobs = client.exchange(want=6).jobs
    client.apply("cancel", jobs[0].id, "no")
    client.exchange(
        [
            finish(jobs[0], "retry"),
            finish(jobs[1], "fail"),
            finish(jobs[2], "snooze", delay=5),
            finish(jobs[3], "release"),
        ],
        want=2,
    )
    assert client.apply("cancel", first, "no") == "cancelled"
    client.now += 60_000_000
    client.apply("reap", 0)
    client.exchange(want=3)
    assert client.apply("trigger", first) == "pending"
    client.apply("purge", "failed")
    counted = client.rows("SELECT kind, state, count(*) FROM backstay_job GROUP BY kind, state")
    kept = client.rows(f"SELECT num, {', '.join(COLUMNS)} FROM backstay_job_kind")  # noqa: S608 - names of columns
    assert sorted(counted) == sorted((num, state, n) for num, *ns in kept for state, n in enumerate(ns) if n)
    assert len({state for _, state, _ in counted}) > 3


def test_lanes_and_kinds_are_deleted_with_their_last_job(client):
    for n in range(20):
        client.add(labels=(f"only-{n}",), keep=0)
    assert len(client.rows("SELECT 1 FROM backstay_job_kind")) == 20
    jobs = client.exchange(labels=tuple(f"only-{n}" for n in range(20))).jobs
    client.exchange([finish(job) for job in jobs])
    assert client.apply("prune", 0, 0) == 20
    assert client.rows("SELECT 1 FROM backstay_job_kind") == []


def test_types_of_one_queue_share_a_lane(client):
    for n in range(5):
        client.add(type=f"t{n}")
    assert len(client.rows("SELECT DISTINCT lane FROM backstay_job_kind")) == 1
    assert [job.type for job in client.exchange().jobs] == [f"t{n}" for n in range(5)]


def test_a_lane_outlives_the_kind_that_named_it(client):
    client.add(type="first", keep=0)
    client.add(type="second")
    first, second = client.exchange().jobs
    client.exchange([finish(first)], want=0)
    client.apply("prune", 0, 1000)
    client.exchange([finish(second, "release")], want=0)
    client.add(type="third", labels=("gpu",))
    assert [job.type for job in client.exchange().jobs] == ["second"]


def test_a_freed_key_releases_a_parked_job_of_a_lane_with_a_worker(client):
    """The parked job of a lane without a worker does not block the other lanes."""
    client.add(concurrency=Concurrency("k", 1))
    (running,) = client.exchange().jobs
    client.add(concurrency=Concurrency("k", 1), labels=("gpu",))
    plain = client.add(concurrency=Concurrency("k", 1))
    assert client.exchange(labels=("gpu",)).jobs == ()
    assert [job.id for job in client.exchange([finish(running)]).jobs] == [plain]


@pytest.mark.parametrize("size", [0, 10, 999, 1001, 300_000])
def test_arguments_of_any_size_are_returned_and_deleted_with_the_job(client, size):
    args, meta = b"a" * size, b"m"
    id_ = client.add(args=args, meta=meta, keep=0)
    assert (client.apply("get", id_).args, client.apply("get", id_).meta) == (args, meta)
    (job,) = client.exchange().jobs
    assert (job.args, job.meta) == (args, meta)
    client.exchange([finish(job, result=b"r" * size)], want=0)
    assert client.apply("get", id_).result == b"r" * size
    assert client.apply("prune", 0, 1000) == 1
    assert client.rows("SELECT num FROM backstay_job_body") == []


def test_namespaces_of_one_file_are_separate(client, tmp_path):
    other = SqliteEngine(client.path, namespace="other", synchronous="off", clock=lambda: client.now)
    store = SqliteStore("other", "other")
    try:
        id_ = client.add(unique=Unique("u", "until_done"))
        assert other.apply(store.get(id_)) is None
        (made,) = other.apply(store.enqueue(0, [NewJob(id=id_, type="t", unique=Unique("u", "until_done"))]))
        assert not made.deduplicated
        assert len(other.apply(store.exchange(client.command())).jobs) == 1
        assert len(client.exchange().jobs) == 1
    finally:
        other.close_blocking()


def test_an_operation_runs_on_the_callers_own_connection(client):
    """The operation is part of the caller's transaction: a rollback undoes it, a commit keeps it."""
    client.engine.apply(Ping())
    job = client.job()
    with sqlite3.connect(client.path, isolation_level=None) as db:
        for last in ("ROLLBACK", "COMMIT"):
            db.execute("BEGIN IMMEDIATE")
            (made,) = client.store.enqueue(0, [job]).work(db, client.now, [])
            assert made.state == "pending"
            db.execute(last)
            assert (client.apply("get", job.id) is None) == (last == "ROLLBACK")
    db.close()
    assert [claimed.id for claimed in client.exchange().jobs] == [job.id]


def test_an_operation_that_raises_after_a_write_is_rolled_back_alone(client):
    def write_and_fail(db, now, wakes):
        client.store.enqueue(0, [client.job(type="undone")]).work(db, now, wakes)
        raise KeyError("oops")

    good, better = client.job(), client.job()
    ops = [client.store.enqueue(0, [good]), client.store.enqueue(0, [client.job()]), client.store.enqueue(0, [better])]
    ops[1] = msgspec.structs.replace(ops[1], work=write_and_fail)
    first, second, third = client.engine.apply_many(ops)
    assert isinstance(second, KeyError)
    assert (first[0].id, third[0].id) == (good.id, better.id)
    with pytest.raises(KeyError):
        client.engine.apply(ops[1])
    assert sorted(job.id for job in client.exchange().jobs) == sorted([good.id, better.id])
    assert client.apply("list_jobs", type="undone") == []


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 2**63},
        {"retries": 2**70},
        {"priority": 101},
        {"type": "lone \ud800 surrogate"},
        {"queue": "a NUL \0 inside"},
        {"after": ("0-unknown",)},
        {"rate": StartRate("b", 2**64, 1)},
        {"unique": Unique("u", "window", 2**63)},
    ],
)
def test_an_unstorable_job_is_refused_before_any_write(client, options):
    good = client.job()
    with pytest.raises(ConfigError):
        client.apply("enqueue", 0, [good, client.job(**options)])
    assert client.apply("get", good.id) is None


def test_reading_jobs_takes_no_write_lock(client):
    """Another connection's open write transaction does not block reads."""
    id_ = client.add()
    with sqlite3.connect(client.path, isolation_level=None) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE backstay_job SET progress = 0.5")
        assert client.apply("get", id_).progress == 0
        assert [queue.pending for queue in client.apply("queues")] == [1]
        assert len(client.apply("list_jobs", state="pending")) == 1
        assert client.apply("next_due", 0) is None
        assert client.apply("workers") == []
        assert client.apply("read_log", id_) == []
        assert client.apply("get_outputs", id_) == {}
        db.execute("ROLLBACK")
    db.close()


def test_reading_a_file_without_jobs_writes_nothing(client):
    client.engine.apply(Ping())
    before = client.rows("PRAGMA data_version"), client.rows("SELECT count(*) FROM backstay_job_space")
    assert client.apply("get", "0-unknown") is None
    assert client.apply("queues") == []
    assert (client.rows("PRAGMA data_version"), client.rows("SELECT count(*) FROM backstay_job_space")) == before


def test_a_job_that_names_a_missing_run_is_counted_by_no_run(client):
    """Without such a run the name is only a label: the job has no events, and is pruned like a job without a run."""
    id_ = client.add(run="r1")
    (job,) = client.exchange().jobs
    client.exchange([finish(job)], want=0)
    assert client.rows("SELECT count(*) FROM backstay_run_event") == [(0,)]
    assert [job.id for job in client.apply("list_jobs", run="r1")] == [id_]
    client.now += 86_400_000_000
    assert client.apply("prune", 0, keep=100) == 1


def test_a_chain_successor_takes_no_unique_key_from_another_job(client):
    """The successor is stored without the key, since the exchange that completes its predecessor must not fail."""
    holder = client.add(unique=Unique("u", "until_done"), labels=("elsewhere",))
    client.add()
    (job,) = client.exchange().jobs
    follower = client.job(unique=Unique("u", "until_done"), chain=job.chain)
    (job,) = client.exchange([finish(job, next=follower)]).jobs
    assert job.id == follower.id
    client.exchange([finish(job)], want=0)
    (again,) = client.apply("enqueue", 0, [client.job(unique=Unique("u", "until_done"))])
    assert (again.id, again.deduplicated) == (holder, True)


def test_a_job_that_is_skipped_at_once_leaves_its_unique_key_to_others(client):
    """Except for a key with a window, which starts at the enqueue."""
    failed = client.add()
    (job,) = client.exchange().jobs
    client.exchange([finish(job, "fail")], want=0)
    for scope, free in (("until_done", True), ("until_start", True), ("window", False)):
        unique = Unique(scope, scope, 1_000_000)
        skipped, next_ = client.job(unique=unique, after=(failed,)), client.job(unique=unique)
        first, second = client.apply("enqueue", 0, [skipped, next_])
        assert (first.state, second.deduplicated) == ("skipped", not free)


WORKER = """
import sys
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.job.model import Finish
from backstay.job.exchange import Claim, ExchangeCommand
from backstay.job.stores.sqlite.store import SqliteStore

path, name = sys.argv[1:]
engine, store = SqliteEngine(path, namespace="jobs", synchronous="off"), SqliteStore("jobs", "jobs")
finishes, seq = (), 0
sys.stdin.readline()
while True:
    seq += 1
    reply = engine.apply(store.exchange(ExchangeCommand(
        shard=0, worker=name, incarnation="i", channel=0, seq=seq, finishes=finishes, claim=Claim(want=7),
        not_after=2**60
    )))
    assert set(reply.verdicts) <= {"ok"}, reply.verdicts
    for job in reply.jobs:
        print(job.id, job.fence)
    finishes = tuple(Finish(job=job.id, fence=job.fence, kind="complete", result=name.encode()) for job in reply.jobs)
    if not finishes:
        break
engine.close_blocking()
"""


def test_processes_on_one_file_complete_each_job_once(client):
    client.now = 0  # far behind the host's clock, which the workers use
    jobs = [client.job(labels=(), after=()) for _ in range(400)]
    client.apply("enqueue", 0, jobs)
    last = client.add(after=tuple(job.id for job in jobs[:50]))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, client.path, f"w{n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    try:
        outputs = [worker.communicate("go\n", timeout=60)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    done = [line.split() for output in outputs for line in output.splitlines()]
    assert sorted(id_ for id_, _ in done) == sorted([*(job.id for job in jobs), last])
    assert len({fence for _, fence in done}) == len(done)
    assert client.apply("get", last).state == "completed"
