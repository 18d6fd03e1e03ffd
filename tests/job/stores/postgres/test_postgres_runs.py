"""What is special to runs on PostgreSQL: who holds what in which order, and that plain jobs do not notice."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import psycopg
import pytest

from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.connection.wire import numbered
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.pipeline.pipeline import SET, PipelineConnection
from backstay.job.ids import Ids
from backstay.job.model import Claim, ExchangeCommand, Finish, NewJob
from backstay.job.run_model import NewRun
from backstay.job.stores.postgres.statements import statement
from backstay.job.stores.postgres.store import PostgresStore
from backstay.testing.servers.postgres import PostgresServer
from backstay.testing.waiting import eventually

pytestmark = pytest.mark.postgres

SECOND = 1_000_000
IDS = Ids()


def job(**fields):
    return NewJob(id=IDS.new(0), type="work", **fields)


def plan(*afters, **fields):
    """A run whose jobs wait for those at these places."""
    id_ = IDS.new(0)
    jobs = []
    for after in afters:
        jobs.append(job(run=id_, after=tuple(jobs[place].id for place in after)))
    return NewRun(id=id_, workflow="w", jobs=tuple(jobs), **fields)


class Hand:
    """One worker on connections of its own."""

    def __init__(self, url, namespace, name="w"):
        self.engine = PostgresEngine(parse(url), namespace=namespace)
        self.engine.apply(Ping())
        self.store = PostgresStore(namespace, namespace)
        self.name, self.seq = name, 0

    def ask(self, verb, *args, **named):
        return self.engine.apply(getattr(self.store, verb)(*args, **named))

    def exchange(self, finishes=(), want=10, lease=60 * SECOND):
        self.seq += 1
        command = ExchangeCommand(
            shard=0,
            worker=self.name,
            incarnation="i",
            channel=0,
            seq=self.seq,
            finishes=tuple(finishes),
            claim=Claim(want=want, lease=lease),
            not_after=self.engine.now() + 60 * SECOND,
        )
        return self.ask("exchange", command)

    def close(self):
        self.engine.close_blocking()


def end(claimed, kind="complete", **fields):
    return Finish(job=claimed.id, fence=claimed.fence, kind=kind, **fields)


@pytest.fixture
def hands(backstay_postgres, namespace):
    made = []

    def make(name="w"):
        made.append(Hand(backstay_postgres.url, namespace, name))
        return made[-1]

    yield make
    for hand in made:
        hand.close()


@pytest.fixture
def admin(backstay_postgres):
    with psycopg.connect(backstay_postgres.url, autocommit=True) as admin:
        yield admin


def test_an_exchange_without_runs_is_one_round_trip_while_other_runs_are_active(hands, monkeypatch):
    """Also where a run's jobs wait in queues that this worker does not look at."""
    hand = hands()
    id_ = IDS.new(0)
    hand.ask("start_run", NewRun(id=id_, workflow="w", jobs=(job(run=id_, queue="elsewhere"),)))
    hand.ask("enqueue", 0, [job() for _ in range(20)])
    jobs = hand.exchange(want=5).jobs
    rounds = []
    carry_out = PipelineConnection._send_round_trip

    def counted(self, session, procedures, **options):
        rounds.append([one.next_trip.commit for one in procedures])
        carry_out(self, session, procedures, **options)

    monkeypatch.setattr(PipelineConnection, "_send_round_trip", counted)
    assert len(hand.exchange(map(end, jobs), want=5).jobs) == 5
    assert rounds == [[True]]


@pytest.mark.slow
def test_a_successful_cascade_is_one_round_trip(hands, monkeypatch):
    """A chain and a diamond: a finish, its dependents, and the next claimed jobs."""
    hand = hands()
    run = plan((), (0,), (1,), (1,), (2, 3), (4,))
    hand.ask("start_run", run)
    held = hand.exchange(want=10).jobs
    rounds = []
    carry_out = PipelineConnection._send_round_trip

    def counted(self, session, procedures, **options):
        rounds.append(procedures[0].next_trip.commit)
        carry_out(self, session, procedures, **options)

    monkeypatch.setattr(PipelineConnection, "_send_round_trip", counted)
    names = {made.id: place for place, made in enumerate(run.jobs)}
    order = []
    while held:
        order.append({names[claimed.id] for claimed in held})
        rounds.clear()
        held = hand.exchange(map(end, held), want=10).jobs
        assert rounds == [True]
    assert order == [{0}, {1}, {2, 3}, {4}, {5}]
    assert hand.ask("get_run", run.id).status == "success"


def test_an_any_failure_job_is_skipped_without_a_failure(hands):
    """Quickly or not, whatever waits beside it for the same job is released and handed out."""
    hand = hands()
    id_ = IDS.new(0)
    first = job(run=id_)
    beside, rescue = job(run=id_, after=(first.id,)), job(run=id_, after=(first.id,), when="any_failure")
    behind = job(run=id_, after=(rescue.id,), when="all_done")
    hand.ask("start_run", NewRun(id=id_, workflow="w", jobs=(first, beside, rescue, behind)))
    (held,) = hand.exchange(want=10).jobs
    held = hand.exchange([end(held)], want=10).jobs
    assert {claimed.id for claimed in held} == {beside.id, behind.id}
    assert hand.ask("get", rescue.id).state == "skipped"
    hand.exchange(map(end, held), want=10)
    assert hand.ask("get_run", id_).status == "success"


def test_a_stale_finish_in_a_fast_batch_leaves_the_others_valid(hands):
    hand = hands()
    run = plan((), (), (0, 1))
    hand.ask("start_run", run)
    held = hand.exchange(want=10).jobs
    foreign = Finish(job=held[0].id, fence=held[0].fence + 1, kind="complete")
    assert hand.exchange([foreign, end(held[1])], want=0).verdicts == ("stale", "ok")
    reply = hand.exchange([end(held[0])], want=10)
    assert (reply.verdicts, [claimed.id for claimed in reply.jobs]) == (("ok",), [run.jobs[2].id])


def test_a_run_being_cancelled_also_cancels_jobs_released_by_a_fast_finish(hands):
    """The cancellation has been decided, and its jobs are not yet found."""
    hand = hands()
    run = plan((), (0,))
    hand.ask("start_run", run)
    held = hand.exchange(want=10).jobs
    hand.exchange((), want=10)
    hand.ask("cancel_run", run.id, "enough")
    assert hand.exchange(map(end, held), want=10).jobs == ()
    assert hand.ask("get_run", run.id).status == "cancelled"


def test_exchanges_that_share_many_runs_never_deadlock(hands, admin, namespace):
    """Each holds several runs at once, in whatever order their jobs came; some are cancelled and tried again."""
    before = _deadlocks(admin)
    workers = [hands(f"w{n}") for n in range(4)]
    runs = [plan((), (), (0, 1), (0,), (2, 3), timeout=3600 * SECOND) for _ in range(25)]
    for nth, run in enumerate(runs):
        workers[nth % 4].ask("start_run", run)
    done = threading.Event()

    def work(hand):
        dice, jobs = random.Random(hand.name), ()
        for _ in range(200):
            kinds = [dice.choice(("complete", "complete", "complete", "fail", "release")) for _ in jobs]
            ends = [end(claimed, kind) for claimed, kind in zip(jobs, kinds, strict=True)]
            dice.shuffle(ends)
            jobs = hand.exchange(ends, want=dice.choice((1, 3, 7))).jobs
            if dice.random() < 0.1:
                run = dice.choice(runs)
                verb = dice.choice(("cancel_run", "rerun_failed", "trigger"))
                args = {"cancel_run": (run.id, "why not"), "trigger": (dice.choice(run.jobs).id,)}.get(verb, (run.id,))
                hand.ask(verb, *args)
            if done.is_set():
                break
        hand.exchange([end(claimed) for claimed in jobs], want=0)

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(work, hand) for hand in workers]:
            each.result(120)
    while jobs := workers[0].exchange(want=100).jobs:
        workers[0].exchange([end(claimed) for claimed in jobs], want=0)
    assert workers[1].ask("check_runs", 0) == []
    for run in runs:
        seen = workers[1].ask("get_run", run.id)
        assert seen.finished, seen
        events = workers[1].ask("run_events", run.id, limit=10_000)
        assert [event.seq for event in events] == list(range(1, seen.events + 1))
    assert _deadlocks(admin) == before


def _deadlocks(admin):
    return admin.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()


@pytest.mark.slow
def test_a_job_added_while_its_run_is_being_cancelled_is_cancelled(hands):
    """The one who adds sees no cancellation, and the one who cancels no new job: they meet at the run."""
    one, other = hands("one"), hands("other")
    barrier = threading.Barrier(2)

    def add(claimed):
        barrier.wait()
        return one.exchange([end(claimed, adds=(job(), job()), next=job())], want=0)

    def cancel(run):
        barrier.wait()
        return other.ask("cancel_run", run.id, "enough")

    with ThreadPoolExecutor(2) as pool:
        for _ in range(40):
            run = plan((), (0,))
            one.ask("start_run", run)
            (claimed,) = one.exchange(want=1).jobs
            added, asked = pool.submit(add, claimed), pool.submit(cancel, run)
            for each in (added, asked):
                each.result(30)
            seen = one.ask("get_run", run.id)
            assert (seen.status, seen.counts) == ("cancelled", {"cancelled": 4})


def test_the_order_of_all_events_is_that_of_each_run(hands, admin):
    """Although the transaction that came second at the run had begun first."""
    one, other = hands("one"), hands("other")
    first, second = plan((), ()), plan(())
    for run in (first, second):
        one.ask("start_run", run)
    claimed = [one.exchange(want=1).jobs[0], other.exchange(want=1).jobs[0]]
    with admin.transaction(), ThreadPoolExecutor(1) as pool:
        admin.execute("SELECT FROM backstay_run WHERE id = %s FOR UPDATE", (first.id,))
        late = pool.submit(one.exchange, [end(claimed[0])], 0)  # has its transaction id, and waits for the run
        (third,) = other.exchange(want=1).jobs
        assert third.run == second.id
        other.exchange([end(third)], want=0)
        admin.execute("COMMIT")
        late.result(30)
    other.exchange([end(claimed[1])], want=0)
    page = one.ask("events", 0)
    for run in (first, second):
        mine = [event for event in page.events if event.run == run.id]
        assert mine == one.ask("run_events", run.id)
        assert mine[-1].kind == "run_finished"


def test_the_last_event_is_visible_without_a_later_write(hands, admin, backstay_postgres):
    """Also when younger transactions committed before the event was written."""
    one = hands("one")
    one.ask("start_run", plan(()))
    run = plan(())
    with psycopg.connect(backstay_postgres.url) as blocker, ThreadPoolExecutor(1) as pool:
        blocker.execute("LOCK TABLE backstay_run_event IN SHARE MODE")
        late = pool.submit(one.ask, "start_run", run)  # has its transaction id, and waits to write the event
        waits = "SELECT FROM pg_locks WHERE relation = 'backstay_run_event'::regclass AND NOT granted"
        assert eventually(lambda: admin.execute(waits).fetchall())
        admin.execute("SELECT pg_current_xact_id()")
        blocker.rollback()
        late.result(30)
    shown = [event for event in one.ask("events", 0).events if event.run == run.id]
    assert shown == one.ask("run_events", run.id)


def test_events_come_in_the_order_of_numbers_and_not_of_their_digits(hands, admin):
    """Whatever a transaction is called: 1000 comes after 999."""
    one = hands("one")
    runs = [plan(()) for _ in range(4)]
    for run in runs:
        one.ask("start_run", run)
    for mark, run in zip((9, 10, 99, 100), runs, strict=True):
        admin.execute("UPDATE backstay_run_event SET mark = %s::text::xid8 WHERE run = %s", (str(mark), run.id))
    shown, cursor = [], ""
    while (page := one.ask("events", 0, cursor, 3)).events:
        shown += [event.run for event in page.events]
        cursor = page.cursor
    assert shown == [run.id for run in runs for _ in range(2)]


def test_simultaneous_events_share_one_row_and_pages_may_end_inside_it(hands, admin, namespace):
    one = hands("one")
    run = plan(*[()] * 200)
    one.ask("start_run", run)
    rows = "SELECT last - first + 1 FROM backstay_run_event WHERE space = %s ORDER BY number"
    assert [count for (count,) in admin.execute(rows, (namespace,))] == [80, 80, 41]
    whole = one.ask("run_events", run.id)
    assert [event.seq for event in whole] == list(range(1, 202))
    shown, cursor = [], ""
    while (page := one.ask("events", 0, cursor, 7)).events:
        assert len(page.events) <= 7
        shown += page.events
        cursor = page.cursor
    assert shown == whole
    assert one.ask("run_events", run.id, 75, 10) == whole[75:85]


def test_an_edge_of_a_run_is_deleted_on_success_and_kept_on_failure(hands, admin, namespace):
    """The job keeps its blockers and receives their results."""
    one = hands("one")
    run = plan((), (), (0, 1, 0))
    first, second, last = (job.id for job in run.jobs)
    one.ask("start_run", run)
    jobs = {claimed.id: claimed for claimed in one.exchange().jobs}
    edges = "SELECT chain, ended, spoilt FROM backstay_job_after WHERE space = %s ORDER BY chain"
    assert admin.execute(edges, (namespace,)).fetchall() == [(first, False, False), (second, False, False)]
    one.exchange([end(jobs[first], result=b"\x01"), end(jobs[second], "fail")], want=0)
    assert admin.execute(edges, (namespace,)).fetchall() == [(second, True, True)]
    seen = one.ask("get", last)
    assert (seen.state, seen.after, seen.waits_for) == ("skipped", (first, second), ())
    one.ask("rerun_failed", run.id)
    assert one.ask("get", last).waits_for == (second,)
    (again,) = one.exchange().jobs
    (final,) = one.exchange([end(again, result=b"\x02")]).jobs
    assert final.upstream == {first: b"\x01", second: b"\x02"}
    assert not admin.execute(edges, (namespace,)).fetchall()


@pytest.mark.slow
def test_dependents_are_found_by_their_index_also_with_a_plan_made_on_an_empty_table():
    """After a VACUUM of the empty table the planner sees no difference between the indexes."""
    with PostgresServer() as server:
        hand = Hand(server.url, "n")
        hand.close()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(SET, {"local": False})
            connection.execute("SET enable_seqscan = off")
            connection.execute("VACUUM ANALYZE")
            empty = list(_planned(connection, "empty"))
            connection.execute(FILLED)
            connection.execute("DELETE FROM backstay_job_after")
            connection.execute("VACUUM ANALYZE")
            emptied = list(_planned(connection, "emptied"))
    for plan in (*empty, *emptied):
        looks = [pair for pair in pairwise(plan) if "using backstay_job_after_" in pair[0]]
        assert looks
        for index, condition in looks:
            assert ("job =" if "_pkey" in index else "chain >=") in condition, plan


FILLED = """
INSERT INTO backstay_job_after (space, job, chain)
SELECT 'n', 'j' || i, 'first' FROM generate_series(1, 2000) i
UNION ALL SELECT 'n', 'last', 'j' || i FROM generate_series(1, 2000) i
"""


def _planned(connection, when):
    for name in ("release_hold", "release_heard"):
        text, names = numbered(statement(name))
        connection.execute(f"PREPARE {name}_{when} AS ".encode() + text)
        given = ", ".join("'n'" if name == "space" else "NULL" for name in names)
        yield [line for (line,) in connection.execute(f"EXPLAIN EXECUTE {name}_{when} ({given})".encode())]
