"""What is special to runs on SQLite: plans, costs, rows. RunSuite has what every store promises."""

from __future__ import annotations

import re
import sqlite3

import msgspec
import pytest
from sqlite_store_client import NOW, SqliteStoreClient, end, work_of

from backstay.engine.base import Ping
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import ConfigError
from backstay.job.model import Concurrency
from backstay.job.run_model import Artifact, NewRun, TokenRecord
from backstay.job.stores.sqlite.columns import STATES
from backstay.job.stores.sqlite.statements import load
from backstay.job.stores.sqlite.store import SqliteStore

DAY = 86_400_000_000
#: What a run is made of, and what belongs to its jobs.
OF_A_RUN = (
    "backstay_run",
    "backstay_run_doc",
    "backstay_run_event",
    "backstay_job",
    "backstay_job_body",
    "backstay_job_wait",
    "backstay_job_chain",
    "backstay_job_log",
    "backstay_job_output",
    "backstay_artifact",
    "backstay_artifact_part",
    "backstay_job_kind",
)


class RunShop(SqliteStoreClient):
    """A shop with runs in it."""

    def begin(self, graph, **options):
        """A run of jobs by name, with the names of those that each waits for; and their ids."""
        run = self.ids.new(0)
        ids = {name: self.ids.new(0) for name in graph}
        jobs = tuple(
            msgspec.structs.replace(
                self.job(type=name, **({} if isinstance(after, (list, tuple)) else after)),
                id=ids[name],
                run=run,
                after=tuple(ids[other] for other in (after if isinstance(after, (list, tuple)) else ())),
            )
            for name, after in graph.items()
        )
        self.ask("start_run", NewRun(id=run, workflow="w", doc=b"doc", jobs=jobs, **options))
        return run, ids

    def drain(self):
        held = self.exchange().jobs
        while held:
            held = self.exchange([end(job) for job in held]).jobs


@pytest.fixture
def shop(tmp_path):
    shop = RunShop(tmp_path / "runs.db")
    yield shop
    shop.engine.close_blocking()


def fan(width):
    """One before many before one."""
    middle = [f"m{n}" for n in range(width)]
    return {"first": [], **{name: ["first"] for name in middle}, "last": middle}


# ── plans and costs ──


@pytest.mark.parametrize(
    ("verb", "name", "index"),
    [
        ("run", "find", "backstay_run_id (space=? AND id=?)"),
        ("list_runs", "all", "backstay_run_id (space=? AND id<?)"),
        ("list_runs", "of_workflow", "backstay_run_workflow (space=? AND workflow=? AND id<?)"),
        ("list_runs", "in_status", "backstay_run_status (space=? AND status=? AND id<?)"),
        (
            "list_runs",
            "of_workflow_in_status",
            "backstay_run_workflow_status (space=? AND workflow=? AND status=? AND id<?)",
        ),
        ("events", "of_run", "backstay_run_event_seq (run=? AND seq>?)"),
        ("events", "of_all", "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("check_runs", "late", "backstay_run_deadline (space=? AND deadline>? AND deadline<?)"),
        ("check_runs", "oldest", "backstay_run_checked (space=?)"),
        ("prune", "runs", "backstay_run_until (space=? AND until>? AND until<?)"),
        ("finish", "has_open_blocker", "backstay_job_wait_open (num=?)"),
        ("finish", "unblock", "backstay_job_wait_open (num=?)"),
        ("finish", "blocked", "backstay_job_wait_open (num=?)"),
        ("finish", "has_failed_blocker", "backstay_job_wait_failing (num=?)"),
        ("finish", "waiting", "COVERING INDEX backstay_job_wait_chain (space=? AND chain=? AND ended=?)"),
        ("definition", "list", "backstay_definition_newest (space=? AND workflow>?)"),
        ("artifact", "list", "backstay_artifact_name (job=?)"),
    ],
)
def test_run_queries_use_their_indexes(shop, verb, name, index):
    shop.engine.apply(Ping())
    sql = load(verb)[name]
    numbered = [int(n) for n in re.findall(r"\?(\d+)", sql)]
    params = [None] * (max(numbered) if numbered else sql.count("?"))
    with sqlite3.connect(shop.path) as db:
        plan = [line for *_, line in db.execute(f"EXPLAIN QUERY PLAN {sql}", params)]
    db.close()
    assert any(line.endswith(index) for line in plan), plan
    sorts = [line for line in plan if "TEMP B-TREE" in line]
    # Few rows each: the dependents of one exchange's finishes; the files of one job, indexed by completeness.
    assert not sorts or (verb, name) in (("finish", "waiting"), ("artifact", "list")), plan


def test_the_last_blocker_is_found_without_reading_the_others(shop):
    """A job that waits for many costs each of them the same, the first like the last."""
    shop.begin(fan(400))
    (first,) = shop.exchange().jobs
    jobs = shop.exchange([end(first)], want=400).jobs
    early, _ = work_of(shop, shop.store.exchange(shop.command([end(jobs[0])], want=0)))
    shop.exchange([end(job) for job in jobs[1:-2]], want=0)
    late, _ = work_of(shop, shop.store.exchange(shop.command([end(jobs[-2])], want=0)))
    assert late <= 1.2 * early


def test_a_finish_costs_the_same_in_a_large_run(shop):
    costs = []
    for size in (10, 2000):
        shop.begin({"a": [], "b": ["a"], **{f"n{n}": {"delay": 1_000_000} for n in range(size)}})
        (job,) = shop.exchange().jobs
        cost, reply = work_of(shop, shop.store.exchange(shop.command([end(job)])))
        costs.append(cost)
        assert [job.type for job in reply.jobs] == ["b"]
        shop.exchange([end(job) for job in reply.jobs], want=0)
    few, many = costs
    assert many <= 1.2 * few


def test_a_plain_exchange_runs_no_run_statement(shop):
    """Jobs without a run neither read a run nor write an event."""
    asked = []
    shop.ask("enqueue", 0, [shop.job() for _ in range(10)])
    jobs = shop.exchange(want=5).jobs
    op = shop.store.exchange(shop.command([end(job) for job in jobs], want=5))

    def traced(db, now, wakes):
        db.set_trace_callback(asked.append)
        try:
            return op.work(db, now, wakes)
        finally:
            db.set_trace_callback(None)

    shop.engine.apply(msgspec.structs.replace(op, work=traced))
    assert asked
    assert not [sql for sql in asked if "backstay_run" in sql or "backstay_job_wait" in sql]


def test_events_of_one_exchange_share_one_row(shop):
    run, _ = shop.begin(fan(300))
    (first,) = shop.exchange().jobs
    shop.exchange([end(first)], want=300)
    rows = shop.rows("SELECT seq FROM backstay_run_event ORDER BY num")
    stored = shop.ask("get_run", run)
    assert stored.events == 1 + 1 + 1 + 1 + 300 + 300
    assert len(rows) == 4  # 601 events in the last step, at most 500 in a row
    assert rows[-1] == (stored.events,)


# ── counts ──


def test_counts_of_runs_agree_with_their_jobs(shop):
    """Whatever happened to them, also to one that is parked."""
    run, ids = shop.begin(
        {
            "a": {"retries": 1},
            "b": {"concurrency": Concurrency("k", 1)},
            "c": {"concurrency": Concurrency("k", 1)},
            "d": {"soft": True},
            "e": {"delay": 5_000_000},
            "f": ["a", "d"],
        }
    )
    jobs = {job.type: job for job in shop.exchange().jobs}
    assert sorted(jobs) == ["a", "b", "d"]
    shop.exchange([end(jobs["a"], "retry", delay=5), end(jobs["d"], "fail")], want=0)
    shop.ask("cancel", ids["c"], "no")
    shop.ask("trigger", ids["d"])
    shop.now += 60_000_000
    shop.ask("reap", 0)
    counted = {}
    for state, count in shop.rows("SELECT state, count(*) FROM backstay_job GROUP BY state"):
        counted[STATES[state]] = counted.get(STATES[state], 0) + count
    assert shop.ask("get_run", run).counts == counted
    assert len(counted) > 3
    assert shop.ask("check_runs", 0) == []


def test_wrong_counts_are_corrected_and_reported_on_sqlite(shop):
    right, _ = shop.begin({"a": [], "b": ["a"]})
    wrong, _ = shop.begin({"a": [], "b": ["a"]})
    before = shop.ask("get_run", wrong)
    with sqlite3.connect(shop.path) as db:
        db.execute("UPDATE backstay_run SET pending = 7, blocked = 0, broken = 1 WHERE id = ?", (wrong,))
    db.close()
    assert shop.ask("check_runs", 0) == [wrong]
    assert shop.ask("get_run", wrong) == before
    assert shop.ask("check_runs", 0) == []
    shop.drain()
    assert [shop.ask("get_run", run).status for run in (right, wrong)] == ["success", "success"]


def test_a_run_whose_end_was_missed_is_finished_by_the_check(shop):
    run, _ = shop.begin({"a": []})
    with sqlite3.connect(shop.path) as db:
        db.execute("UPDATE backstay_job SET state = 4")
        db.execute("UPDATE backstay_run SET pending = 0, completed = 1")
    db.close()
    assert shop.ask("check_runs", 0) == [run]
    assert shop.ask("get_run", run).status == "success"
    assert [event.kind for event in shop.ask("run_events", run)][-1] == "run_finished"


def test_the_check_visits_every_run_in_turn(shop):
    runs = [shop.begin({"a": []})[0] for _ in range(5)]
    with sqlite3.connect(shop.path) as db:
        db.execute("UPDATE backstay_run SET pending = 9")
    db.close()
    found = []
    for _ in range(3):
        shop.now += 1
        found.append(shop.ask("check_runs", 0, limit=2))
    assert [len(ids) for ids in found] == [2, 2, 1]
    assert sorted(id_ for ids in found for id_ in ids) == sorted(runs)


# ── results ──


def test_a_result_is_not_copied_to_dependents_in_the_run(shop):
    _, ids = shop.begin(fan(50))
    (first,) = shop.exchange().jobs
    large = b"r" * 100_000
    jobs = shop.exchange([end(first, result=large)]).jobs
    assert [job.upstream for job in jobs] == [{ids["first"]: large}] * 50
    assert shop.rows("SELECT count(*) FROM backstay_job_wait WHERE result IS NOT NULL") == [(0,)]
    (last,) = shop.exchange([end(job, result=job.type.encode()) for job in jobs]).jobs
    assert last.upstream == {ids[f"m{n}"]: f"m{n}".encode() for n in range(50)}


def test_a_dependent_outside_the_run_has_a_copy_of_the_result(shop):
    """It may outlive the run that it waited for."""
    run, ids = shop.begin({"a": [], "b": ["a"]}, keep=0)
    outside = shop.add(after=(ids["a"],), labels=("rare",))
    (job,) = shop.exchange().jobs
    (job,) = shop.exchange([end(job, result=b"of a")]).jobs
    shop.exchange([end(job)], want=0)
    assert shop.ask("prune", 0, 1000) > 0
    assert shop.ask("get_run", run) is None
    (job,) = shop.exchange(labels=("rare",)).jobs
    assert (job.id, job.upstream) == (outside, {ids["a"]: b"of a"})


def test_the_result_of_a_chain_is_that_of_its_last_job(shop):
    _, ids = shop.begin({"a": [], "b": ["a"]})
    (job,) = shop.exchange().jobs
    (job,) = shop.exchange([end(job, result=b"first", next=shop.job(type="more", chain=job.chain))]).jobs
    (job,) = shop.exchange([end(job, result=b"second")]).jobs
    assert job.upstream == {ids["a"]: b"second"}


def test_a_dependent_added_after_the_end_is_released_when_both_are_retried(shop):
    run, ids = shop.begin({"a": []})
    (job,) = shop.exchange().jobs
    late = shop.job(type="late", run=run, after=(ids["a"],), when="all_done")
    shop.exchange([end(job, "fail")], want=0)
    shop.ask("enqueue", 0, [late])
    (job,) = shop.exchange().jobs
    shop.exchange([end(job, "fail")], want=0)
    assert shop.ask("trigger", ids["a"]) == "pending"
    assert shop.ask("trigger", late.id) == "blocked"
    (job,) = shop.exchange().jobs
    (job,) = shop.exchange([end(job, result=b"now")]).jobs
    assert job.upstream == {ids["a"]: b"now"}
    shop.exchange([end(job, "fail")], want=0)
    shop.ask("trigger", ids["a"])  # it completed: nothing to try again
    assert shop.ask("rerun_failed", run).counts == {"completed": 1, "pending": 1}


# ── events ──


def test_pages_of_any_size_hold_every_event_once(shop):
    """Also where a page ends inside of a row."""
    one, _ = shop.begin(fan(7))
    other, _ = shop.begin(fan(3))
    shop.drain()
    whole = shop.ask("events", 0).events
    assert sorted(whole, key=lambda event: (event.run, event.seq)) == sorted(
        [*shop.ask("run_events", one), *shop.ask("run_events", other)], key=lambda event: (event.run, event.seq)
    )
    for size in (1, 2, 5, 13, len(whole)):
        cursor, seen = "", []
        while (page := shop.ask("events", 0, after=cursor, limit=size)).events:
            seen += page.events
            cursor = page.cursor
        assert tuple(seen) == whole
        events = shop.ask("run_events", one)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        pages = [shop.ask("run_events", one, after=n, limit=size) for n in range(0, len(events), size)]
        assert [event for page in pages for event in page] == events


def test_a_cursor_outlives_the_events_before_it(shop):
    """Numbers are not given out again when everything is deleted."""
    shop.begin({"a": []}, keep=0)
    shop.drain()
    cursor = shop.ask("events", 0).cursor
    assert shop.ask("prune", 0, 1000) == 2
    assert shop.rows("SELECT count(*) FROM backstay_run_event") == [(0,)]
    assert shop.ask("events", 0, after=cursor).events == ()
    run, _ = shop.begin({"a": []})
    page = shop.ask("events", 0, after=cursor)
    assert [(event.run, event.kind) for event in page.events] == [(run, "run_created"), (run, "ready")]
    assert shop.ask("events", 0).events == page.events


def test_events_of_namespaces_are_separate(shop):
    other = SqliteEngine(shop.path, namespace="other", synchronous="off", clock=lambda: shop.now)
    store = SqliteStore("other", "other")
    try:
        for n in range(3):
            shop.begin({"a": []})
            other.apply(store.start_run(NewRun(id=f"0-{n}", workflow="w")))
        assert {event.run for event in other.apply(store.events(0)).events} == {"0-0", "0-1", "0-2"}
        assert len(shop.ask("events", 0).events) == 6
        assert other.apply(store.events(0, "$")).events == ()
    finally:
        other.close_blocking()


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "٣", "9" * 20])
def test_an_invalid_cursor_is_refused(shop, cursor):
    with pytest.raises(ConfigError, match="cursor"):
        shop.ask("events", 0, after=cursor)


# ── tidiness ──


def test_pruning_a_run_deletes_all_its_rows(shop):
    run, ids = shop.begin({"a": {"args": b"x" * 5000}, "b": ["a"]}, keep=DAY)
    (job,) = shop.exchange().jobs
    shop.ask("append_log", job.id, job.fence, [(NOW, "stdout", "line")], 1)
    for part in range(2):
        artifact = Artifact(job=job.id, name="f", size=8, digest="d")
        assert shop.ask("put_artifact", artifact, job.fence, part, b"data", last=part == 1)
    (job,) = shop.exchange([end(job, outputs={"k": "v"}, next=shop.job(chain=job.chain))]).jobs
    shop.exchange([end(job)])
    shop.ask("cancel_run", run, "enough")
    (job,) = [shop.ask("get", ids["b"])]
    shop.exchange([end(job)], want=0)
    assert shop.ask("get_run", run).status == "cancelled"
    full = {table: shop.rows(f"SELECT count(*) FROM {table}") for table in OF_A_RUN}  # noqa: S608 - names above
    assert all(count > [(0,)] for count in full.values()), full
    shop.now += DAY - 1
    assert shop.ask("prune", 0, 0) == 0
    shop.now += 1
    assert shop.ask("prune", 0, 0) > 0
    left = {table: shop.rows(f"SELECT count(*) FROM {table}") for table in OF_A_RUN}  # noqa: S608 - names above
    assert all(count == [(0,)] for count in left.values()), left


def test_jobs_of_runs_do_not_count_toward_job_retention(shop):
    """However many there are: the oldest plain job goes, and jobs of runs stay with their run."""
    run, _ = shop.begin({f"n{n}": [] for n in range(20)})
    shop.drain()
    plain = [shop.add() for _ in range(3)]
    shop.drain()
    assert shop.ask("prune", 0, 3) == 0
    assert shop.ask("prune", 0, 2) == 1
    assert [shop.ask("get", id_) is None for id_ in plain] == [True, False, False]
    assert shop.ask("purge", "completed") == 2
    assert shop.ask("get_run", run).counts == {"completed": 20}
    assert len(shop.ask("list_jobs", run=run)) == 20


def test_jobs_of_runs_and_others_share_a_lane(shop):
    """Who was due first goes first."""
    shop.add(type="plain")
    shop.now += 1
    shop.begin({"a": []})
    shop.now += 1
    shop.add(type="plain")
    assert len(shop.rows("SELECT DISTINCT lane FROM backstay_job_kind")) == 1
    assert [job.type for job in shop.exchange().jobs] == ["plain", "a", "plain"]


# ── refusals and looks ──


def test_a_refused_run_stores_nothing(shop):
    known = shop.add()
    label = shop.ids.new(0)
    shop.add(run=label)
    fresh = shop.ids.new(0)
    bad = [
        NewRun(id=fresh, workflow="w", jobs=(shop.job(run=fresh), shop.job(run=fresh, after=(known,)))),
        NewRun(id=fresh, workflow="w", jobs=(msgspec.structs.replace(shop.job(run=fresh), id=known),)),
        NewRun(id=fresh, workflow="w", jobs=(shop.job(run=fresh, queue="a NUL \0 inside"),)),
        NewRun(id=fresh, workflow="lone \ud800 surrogate"),
        NewRun(id=fresh, workflow="w", timeout=2**63),
        NewRun(id=label, workflow="w"),
    ]
    for run in bad:
        with pytest.raises(ConfigError):
            shop.ask("start_run", run)
    assert shop.rows("SELECT count(*) FROM backstay_run") == [(0,)]
    assert shop.rows("SELECT count(*) FROM backstay_job") == [(2,)]


def test_reading_runs_takes_no_write_lock(shop):
    run, ids = shop.begin({"a": []})
    shop.ask("put_definition", "w", "d", b"doc")
    shop.ask("put_token", TokenRecord(id="t", digest=b"d", role="admin"))
    with sqlite3.connect(shop.path, isolation_level=None) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE backstay_run SET status = 3")
        assert shop.ask("get_run", run).status == "queued"
        assert [found.id for found in shop.ask("list_runs", workflow="w", status="queued")] == [run]
        assert len(shop.ask("run_events", run)) == len(shop.ask("events", 0).events) == 2
        assert shop.ask("get_definition", "w").version == 1
        assert len(shop.ask("list_definitions")) == len(shop.ask("tokens")) == 1
        assert shop.ask("list_artifacts", ids["a"]) == []
        assert shop.ask("read_artifact", ids["a"], "f", 0) is None
        db.execute("ROLLBACK")
    db.close()
