"""What is special to jobs on SQLite: plans, counts, connections, processes. JobSuite has what every store promises."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys

import msgspec
import pytest
from sqlite_store_client import SqliteStoreClient, end, work_of

from backstay.engine.base import Ping, StoreOperation
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import ConfigError
from backstay.job.model import Concurrency, NewJob, Rate, Unique
from backstay.job.stores.sqlite.columns import COLUMNS
from backstay.job.stores.sqlite.statements import FOLDERS, SQL, load
from backstay.job.stores.sqlite.store import SqliteStore

VERBS = sorted(file.name[:-4] for folder in FOLDERS for file in SQL.joinpath(folder).iterdir())


@pytest.fixture
def shop(tmp_path):
    shop = SqliteStoreClient(tmp_path / "shop.db")
    yield shop
    shop.engine.close_blocking()


# ── plans ──


@pytest.mark.parametrize("verb", VERBS)
def test_no_statement_scans_all_jobs(shop, verb):
    """Every statement finds its rows by an index. Kinds, queues and workers are few: those may be walked through."""
    shop.engine.apply(Ping())
    few = {"backstay_job_kind", "backstay_job_queue", "backstay_job_worker", "backstay_job_turn", "k", "n", "f", "m"}
    with sqlite3.connect(shop.path) as db:
        for name, sql in load(verb).items():
            numbered = [int(n) for n in re.findall(r"\?(\d+)", sql)]
            params = [None] * (max(numbered) if numbered else sql.count("?"))
            for *_, line in db.execute(f"EXPLAIN QUERY PLAN {sql}", params):
                walked = re.match(r"SCAN (?!CONSTANT ROW)(\w+)", line)
                fine = walked is None or walked[1] in few or "json_each" in line or "VIRTUAL TABLE" in line
                # Its largest number is the table's last row: a walk that ends where it begins.
                assert fine or "max(num)" in sql, f"{verb}.{name}: {line}"
    db.close()


@pytest.mark.parametrize(
    ("verb", "name", "index"),
    [
        ("claim", "first", "backstay_job_pending (lane=?)"),
        ("claim", "more", "backstay_job_pending (lane=? AND (rank,id)>(?,?))"),
        ("claim", "running_with_key", "backstay_job_keyed (space=? AND ckey=? AND state=?)"),
        ("reap", "ended", "backstay_job_alarm (space=? AND state=? AND alarm>? AND alarm<?)"),
        ("reap", "due", "backstay_job_alarm (space=? AND state=? AND alarm>? AND alarm<?)"),
        ("prune", "jobs", "backstay_job_alarm (space=? AND state=? AND alarm>? AND alarm<?)"),
        ("finish", "plain", "backstay_job_id (space=? AND id=?)"),
        ("list_jobs", "newest", "backstay_job_listed (space=? AND state=? AND id<?)"),
        ("list_jobs", "newest_of", "COVERING INDEX backstay_job_listed (space=? AND state=? AND id<?)"),
        ("list_jobs", "oldest_of", "COVERING INDEX backstay_job_listed (space=? AND state=?)"),
    ],
)
def test_statements_of_an_exchange_use_an_index_and_sort_nothing(shop, verb, name, index):
    shop.engine.apply(Ping())
    sql = load(verb)[name]
    with sqlite3.connect(shop.path) as db:
        plan = [line for *_, line in db.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("?"))]
    db.close()
    assert any(line.endswith(index) for line in plan), plan
    assert not [line for line in plan if "TEMP B-TREE" in line], plan


def test_the_cost_of_a_claim_does_not_grow_with_the_backlog(shop):
    """10 types, 20 label sets; a few jobs, then many more of them."""

    def fill(count):
        shop.ask(
            "enqueue",
            0,
            [shop.job(type=f"t{n % 10}", labels=tuple(f"l{k:02}" for k in range(n // 10 % 20))) for n in range(count)],
        )

    labels = tuple(f"l{k:02}" for k in range(20))
    fill(1000)
    few, reply = work_of(shop, shop.store.exchange(shop.command(want=50, labels=labels)))
    assert len(reply.jobs) == 50
    fill(20_000)
    shop.now += 1
    many, reply = work_of(shop, shop.store.exchange(shop.command(want=50, labels=labels)))
    assert len(reply.jobs) == 50
    assert many <= 1.5 * few


def test_unclaimable_jobs_cost_a_claim_nothing(shop):
    shop.add()
    alone, reply = work_of(shop, shop.store.exchange(shop.command(want=1)))
    shop.exchange([end(reply.jobs[0])], want=0)
    shop.ask("enqueue", 0, [shop.job(labels=("gpu",)) for _ in range(1000)])
    shop.add()
    behind, reply = work_of(shop, shop.store.exchange(shop.command(want=1)))
    assert len(reply.jobs) == 1
    assert behind <= 2 * alone


def test_many_jobs_with_a_full_key_are_parked_in_batches(shop):
    """A step stays short; what it left is looked at by the next, which is to come at once."""
    shop.ask("enqueue", 0, [shop.job(concurrency=Concurrency("k", 1)) for _ in range(2500)])
    free = shop.add()
    first = shop.exchange(want=2)
    assert first.next_in == 0
    second = shop.exchange(want=2)
    assert [job.id for job in second.jobs] == [free]
    assert shop.rows("SELECT pending, parked, running FROM backstay_job_kind") == [(0, 2499, 2)]


def test_jobs_with_a_full_key_are_scanned_once(shop):
    """Parked when they are met, they cost later claims nothing."""
    shop.ask("enqueue", 0, [shop.job(concurrency=Concurrency("k", 1)) for _ in range(500)])
    (running,) = shop.exchange(want=10).jobs
    shop.add()
    claim, reply = work_of(shop, shop.store.exchange(shop.command(want=10)))
    assert [job.type for job in reply.jobs] == ["t"]
    shop.exchange([end(reply.jobs[0])], want=0)
    shop.exchange([end(running)], want=0)
    assert claim < 200


# ── ends in a row ──


def claimed(shop, count, **options):
    """Jobs that were made together and are claimed together."""
    shop.ask("enqueue", 0, [shop.job(**options) for _ in range(count)])
    return shop.exchange(want=count).jobs


def test_uniform_finishes_of_one_claim_are_one_statement(shop):
    def costs(count):
        ends = [end(job, result=b"r") for job in claimed(shop, count)]
        asked = []
        op = shop.store.exchange(shop.command(ends, want=0))

        def counted(db, now, wakes):
            db.set_trace_callback(asked.append)
            try:
                return op.work(db, now, wakes)
            finally:
                db.set_trace_callback(None)

        assert shop.engine.apply(StoreOperation(counted, key=op.key)).verdicts == ("ok",) * count
        return len(asked)

    assert costs(5) == costs(90)
    assert shop.rows("SELECT count(*), count(DISTINCT fence), min(result) FROM backstay_job WHERE state = 4") == [
        (95, 95, b"r")
    ]


@pytest.mark.parametrize("odd", range(6))
@pytest.mark.parametrize(
    ("change", "verdict", "state"),
    [
        ({"fence": 1}, "stale", "running"),
        ({"job": "0-ffff"}, "stale", "running"),
        ({"kind": "fail"}, "ok", "failed"),
        ({"result": b"another"}, "ok", "completed"),
    ],
)
def test_one_differing_finish_gets_its_own_verdict(shop, odd, change, verdict, state):
    jobs = claimed(shop, 6)
    ends = [end(job, result=b"r") for job in jobs]
    ends[odd] = msgspec.structs.replace(ends[odd], **change)
    assert shop.exchange(ends, want=0).verdicts == tuple(verdict if n == odd else "ok" for n in range(6))
    assert [shop.ask("get", job.id).state for job in jobs] == [state if n == odd else "completed" for n in range(6)]
    assert {shop.ask("get", job.id).result for n, job in enumerate(jobs) if n != odd} == {b"r"}


def test_finishes_may_come_in_any_order_and_a_repeated_finish_is_stale(shop):
    jobs = claimed(shop, 8)
    ends = [end(job) for job in jobs]
    assert shop.exchange(ends[::-1], want=0).verdicts == ("ok",) * 8
    assert shop.exchange(ends, want=0).verdicts == ("stale",) * 8
    more = [end(job) for job in claimed(shop, 5)]
    assert shop.exchange([*more, more[0]], want=0).verdicts == ("ok",) * 5 + ("stale",)


def test_a_watched_job_of_a_uniform_batch_wakes_its_waiter(shop):
    jobs = claimed(shop, 5)
    shop.ask("watch", jobs[2].id)
    heard = []
    op = shop.store.exchange(shop.command([end(job) for job in jobs], want=0))

    def overheard(db, now, wakes):
        answer = op.work(db, now, wakes)
        heard.extend(wake.payload for wake in wakes)
        return answer

    assert shop.engine.apply(StoreOperation(overheard, key=op.key)).verdicts == ("ok",) * 5
    assert heard == [jobs[2].id]


def test_records_of_a_uniform_batch_expire_in_time(shop):
    shop.exchange([end(job) for job in claimed(shop, 10, keep=1_000_000)], want=0)
    assert shop.ask("prune", 0, 1000) == 0
    shop.now += 1_000_000
    assert [shop.ask("prune", 0, 1000, limit=4) for _ in range(4)] == [4, 4, 2, 0]
    assert shop.rows("SELECT count(*) FROM backstay_job") == [(0,)]


def test_records_expire_in_time_after_others_of_their_batch_were_deleted(shop):
    jobs = claimed(shop, 10, keep=1_000_000)
    shop.exchange([end(job) for job in jobs], want=0)
    assert shop.ask("prune", 0, 7) == 3  # the oldest above a number
    claimed(shop, 3)  # others may lie where they lay
    shop.now += 999_999
    assert shop.ask("prune", 0, 1000) == 0
    shop.now += 1
    assert shop.ask("prune", 0, 1000) == 7
    assert shop.rows("SELECT count(*) FROM backstay_job WHERE state <> 3") == [(0,)]


def test_jobs_finished_together_keep_their_own_times(shop):
    shop.ask("enqueue", 0, [shop.job(keep=n * 1_000_000) for n in range(1, 7)])
    shop.exchange([end(job) for job in shop.exchange().jobs], want=0)
    shop.now += 3_000_000
    assert shop.ask("prune", 0, 1000) == 3
    shop.now += 3_000_000
    assert shop.ask("prune", 0, 1000) == 3


# ── counts and lanes ──


def test_counts_agree_with_the_jobs(shop):
    """Whatever happened to them: the counts are kept beside, and never counted."""
    for n in range(10):
        shop.add(
            type=f"t{n % 3}",
            retries=n % 2,
            delay=1_000_000 if n == 3 else 0,
            concurrency=Concurrency("k", 1) if n % 2 else None,
            unique=Unique(f"u{n}", "until_done"),
            rate=Rate("b", 1_000_000, 5) if n == 4 else None,
        )
    first = shop.add()
    shop.add(after=(first,))
    jobs = shop.exchange(want=6).jobs
    shop.ask("cancel", jobs[0].id, "no")
    shop.exchange(
        [end(jobs[0], "retry"), end(jobs[1], "fail"), end(jobs[2], "snooze", delay=5), end(jobs[3], "release")], want=2
    )
    assert shop.ask("cancel", first, "no") == "cancelled"
    shop.now += 60_000_000
    shop.ask("reap", 0)
    shop.exchange(want=3)
    assert shop.ask("trigger", first) == "pending"
    shop.ask("purge", "failed")
    counted = shop.rows("SELECT kind, state, count(*) FROM backstay_job GROUP BY kind, state")
    kept = shop.rows(f"SELECT num, {', '.join(COLUMNS)} FROM backstay_job_kind")  # noqa: S608 - names of columns
    assert sorted(counted) == sorted((num, state, n) for num, *ns in kept for state, n in enumerate(ns) if n)
    assert len({state for _, state, _ in counted}) > 3


def test_lanes_and_kinds_are_deleted_with_their_last_job(shop):
    for n in range(20):
        shop.add(labels=(f"only-{n}",), keep=0)
    assert len(shop.rows("SELECT 1 FROM backstay_job_kind")) == 20
    jobs = shop.exchange(labels=tuple(f"only-{n}" for n in range(20))).jobs
    shop.exchange([end(job) for job in jobs])
    assert shop.ask("prune", 0, 0) == 20
    assert shop.rows("SELECT 1 FROM backstay_job_kind") == []


def test_types_of_one_queue_share_a_lane(shop):
    for n in range(5):
        shop.add(type=f"t{n}")
    assert len(shop.rows("SELECT DISTINCT lane FROM backstay_job_kind")) == 1
    assert [job.type for job in shop.exchange().jobs] == [f"t{n}" for n in range(5)]


def test_a_lane_outlives_the_kind_that_named_it(shop):
    shop.add(type="first", keep=0)
    shop.add(type="second")
    first, second = shop.exchange().jobs
    shop.exchange([end(first)], want=0)
    shop.ask("prune", 0, 1000)
    shop.exchange([end(second, "release")], want=0)
    shop.add(type="third", labels=("gpu",))
    assert [job.type for job in shop.exchange().jobs] == ["second"]


def test_a_freed_key_releases_a_parked_job_of_a_lane_with_a_worker(shop):
    """The parked job of a lane without a worker does not block the other lanes."""
    shop.add(concurrency=Concurrency("k", 1))
    (running,) = shop.exchange().jobs
    shop.add(concurrency=Concurrency("k", 1), labels=("gpu",))
    plain = shop.add(concurrency=Concurrency("k", 1))
    assert shop.exchange(labels=("gpu",)).jobs == ()
    assert [job.id for job in shop.exchange([end(running)]).jobs] == [plain]


# ── what lies apart ──


@pytest.mark.parametrize("size", [0, 10, 999, 1001, 300_000])
def test_arguments_of_any_size_are_returned_and_deleted_with_the_job(shop, size):
    args, meta = b"a" * size, b"m"
    id_ = shop.add(args=args, meta=meta, keep=0)
    assert (shop.ask("get", id_).args, shop.ask("get", id_).meta) == (args, meta)
    (job,) = shop.exchange().jobs
    assert (job.args, job.meta) == (args, meta)
    shop.exchange([end(job, result=b"r" * size)], want=0)
    assert shop.ask("get", id_).result == b"r" * size
    assert shop.ask("prune", 0, 1000) == 1
    assert shop.rows("SELECT num FROM backstay_job_body") == []


def test_namespaces_of_one_file_are_separate(shop, tmp_path):
    other = SqliteEngine(shop.path, namespace="other", synchronous="off", clock=lambda: shop.now)
    store = SqliteStore("other", "other")
    try:
        id_ = shop.add(unique=Unique("u", "until_done"))
        assert other.apply(store.get(id_)) is None
        (made,) = other.apply(store.enqueue(0, [NewJob(id=id_, type="t", unique=Unique("u", "until_done"))]))
        assert not made.deduplicated
        assert len(other.apply(store.exchange(shop.command())).jobs) == 1
        assert len(shop.exchange().jobs) == 1
    finally:
        other.close_blocking()


# ── transactions ──


def test_an_operation_runs_on_the_callers_own_connection(shop):
    """Inside its transaction: gone with a rollback, there with a commit."""
    shop.engine.apply(Ping())
    job = shop.job()
    with sqlite3.connect(shop.path, isolation_level=None) as db:
        for last in ("ROLLBACK", "COMMIT"):
            db.execute("BEGIN IMMEDIATE")
            (made,) = shop.store.enqueue(0, [job]).work(db, shop.now, [])
            assert made.state == "pending"
            db.execute(last)
            assert (shop.ask("get", job.id) is None) == (last == "ROLLBACK")
    db.close()
    assert [claimed.id for claimed in shop.exchange().jobs] == [job.id]


def test_an_operation_that_raises_after_a_write_is_rolled_back_alone(shop):
    def spoil(db, now, wakes):
        shop.store.enqueue(0, [shop.job(type="spoiled")]).work(db, now, wakes)
        raise KeyError("oops")

    good, better = shop.job(), shop.job()
    ops = [shop.store.enqueue(0, [good]), shop.store.enqueue(0, [shop.job()]), shop.store.enqueue(0, [better])]
    ops[1] = msgspec.structs.replace(ops[1], work=spoil)
    first, second, third = shop.engine.apply_many(ops)
    assert isinstance(second, KeyError)
    assert (first[0].id, third[0].id) == (good.id, better.id)
    with pytest.raises(KeyError):
        shop.engine.apply(ops[1])
    assert sorted(job.id for job in shop.exchange().jobs) == sorted([good.id, better.id])
    assert shop.ask("list_jobs", type="spoiled") == []


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 2**63},
        {"retries": 2**70},
        {"priority": 101},
        {"type": "lone \ud800 surrogate"},
        {"queue": "a NUL \0 inside"},
        {"after": ("0-nobody",)},
        {"rate": Rate("b", 2**64, 1)},
        {"unique": Unique("u", "window", 2**63)},
    ],
)
def test_an_unstorable_job_is_refused_before_any_write(shop, options):
    good = shop.job()
    with pytest.raises(ConfigError):
        shop.ask("enqueue", 0, [good, shop.job(**options)])
    assert shop.ask("get", good.id) is None


def test_reading_jobs_takes_no_write_lock(shop):
    """Another connection's open write transaction does not block reads."""
    id_ = shop.add()
    with sqlite3.connect(shop.path, isolation_level=None) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE backstay_job SET progress = 0.5")
        assert shop.ask("get", id_).progress == 0
        assert [queue.pending for queue in shop.ask("queues")] == [1]
        assert len(shop.ask("list_jobs", state="pending")) == 1
        assert shop.ask("next_due", 0) is None
        assert shop.ask("workers") == []
        assert shop.ask("read_log", id_) == []
        assert shop.ask("get_outputs", id_) == {}
        db.execute("ROLLBACK")
    db.close()


def test_reading_a_file_without_jobs_writes_nothing(shop):
    shop.engine.apply(Ping())
    before = shop.rows("PRAGMA data_version"), shop.rows("SELECT count(*) FROM backstay_job_space")
    assert shop.ask("get", "0-nobody") is None
    assert shop.ask("queues") == []
    assert (shop.rows("PRAGMA data_version"), shop.rows("SELECT count(*) FROM backstay_job_space")) == before


def test_a_job_that_names_a_missing_run_is_counted_by_no_run(shop):
    """A label, as long as there is no such run: it leaves no events, and its record goes by itself."""
    id_ = shop.add(run="r1")
    (job,) = shop.exchange().jobs
    shop.exchange([end(job)], want=0)
    assert shop.rows("SELECT count(*) FROM backstay_run_event") == [(0,)]
    assert [job.id for job in shop.ask("list_jobs", run="r1")] == [id_]
    shop.now += 86_400_000_000
    assert shop.ask("prune", 0, keep=100) == 1


def test_a_chain_successor_takes_no_unique_key_from_another_job(shop):
    """The chain goes on all the same: its step must not be refused."""
    holder = shop.add(unique=Unique("u", "until_done"), labels=("elsewhere",))
    shop.add()
    (job,) = shop.exchange().jobs
    follower = shop.job(unique=Unique("u", "until_done"), chain=job.chain)
    (job,) = shop.exchange([end(job, next=follower)]).jobs
    assert job.id == follower.id
    shop.exchange([end(job)], want=0)
    (again,) = shop.ask("enqueue", 0, [shop.job(unique=Unique("u", "until_done"))])
    assert (again.id, again.deduplicated) == (holder, True)


def test_a_job_that_is_skipped_at_once_leaves_its_unique_key_to_others(shop):
    """Except for a window, which is counted from the asking on."""
    failed = shop.add()
    (job,) = shop.exchange().jobs
    shop.exchange([end(job, "fail")], want=0)
    for scope, free in (("until_done", True), ("until_start", True), ("window", False)):
        unique = Unique(scope, scope, 1_000_000)
        skipped, next_ = shop.job(unique=unique, after=(failed,)), shop.job(unique=unique)
        first, second = shop.ask("enqueue", 0, [skipped, next_])
        assert (first.state, second.deduplicated) == ("skipped", not free)


# ── several processes ──

WORKER = """
import sys
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.job.model import Claim, Finish, ExchangeCommand
from backstay.job.stores.sqlite.store import SqliteStore

path, name = sys.argv[1:]
engine, store = SqliteEngine(path, namespace="shop", synchronous="off"), SqliteStore("shop", "shop")
ends, seq = (), 0
sys.stdin.readline()
while True:
    seq += 1
    reply = engine.apply(store.exchange(ExchangeCommand(
        shard=0, worker=name, incarnation="i", channel=0, seq=seq, finishes=ends, claim=Claim(want=7), not_after=2**60
    )))
    assert set(reply.verdicts) <= {"ok"}, reply.verdicts
    for job in reply.jobs:
        print(job.id, job.fence)
    ends = tuple(Finish(job=job.id, fence=job.fence, kind="complete", result=name.encode()) for job in reply.jobs)
    if not ends:
        break
engine.close_blocking()
"""


def test_processes_on_one_file_complete_each_job_once(shop):
    shop.now = 0  # the workers' clock is the host's
    jobs = [shop.job(labels=(), after=()) for _ in range(400)]
    shop.ask("enqueue", 0, jobs)
    last = shop.add(after=tuple(job.id for job in jobs[:50]))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, shop.path, f"w{n}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
    assert shop.ask("get", last).state == "completed"
