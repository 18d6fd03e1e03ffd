"""Runs on PostgreSQL, beyond the conformance suite: round trips, lock order, order of events, stored edges."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import psycopg
import pytest
from postgres_store_client import IDS, PostgresStoreClient, job, plan_run

from backstay.engine.postgres.connection.wire import number_placeholders
from backstay.engine.postgres.pipeline.pipeline import SET
from backstay.job.model import Finish
from backstay.job.run_model import NewRun
from backstay.job.stores.postgres.statements import statement
from backstay.testing.servers.postgres import PostgresServer
from backstay.testing.waiting import eventually
from support.store_client import SECOND, finish

pytestmark = pytest.mark.postgres


def test_an_exchange_without_runs_is_one_round_trip_while_other_runs_are_active(clients, round_trips):
    """The jobs of the run are in a queue that this worker does not claim from."""
    client = clients(want=10)
    id_ = IDS.new(0)
    client.apply("start_run", NewRun(id=id_, workflow="w", jobs=(job(run=id_, queue="elsewhere"),)))
    client.apply("enqueue", 0, [job() for _ in range(20)])
    jobs = client.exchange(want=5).jobs
    round_trips.clear()
    assert len(client.exchange(map(finish, jobs), want=5).jobs) == 5
    assert round_trips == [[True]]


@pytest.mark.slow
def test_a_successful_cascade_is_one_round_trip(clients, round_trips):
    """A chain and a diamond: a finish, its dependents, and the next claimed jobs."""
    client = clients(want=10)
    run = plan_run((), (0,), (1,), (1,), (2, 3), (4,))
    client.apply("start_run", run)
    running = client.exchange(want=10).jobs
    positions = {made.id: position for position, made in enumerate(run.jobs)}
    order = []
    while running:
        order.append({positions[claimed.id] for claimed in running})
        round_trips.clear()
        running = client.exchange(map(finish, running), want=10).jobs
        assert round_trips == [[True]]
    assert order == [{0}, {1}, {2, 3}, {4}, {5}]
    assert client.apply("get_run", run.id).status == "success"


def test_an_any_failure_job_is_skipped_without_a_failure(clients):
    """The other dependents of the same job are released in the same exchange."""
    client = clients(want=10)
    id_ = IDS.new(0)
    first = job(run=id_)
    sibling, cleanup = job(run=id_, after=(first.id,)), job(run=id_, after=(first.id,), when="any_failure")
    after_cleanup = job(run=id_, after=(cleanup.id,), when="all_done")
    client.apply("start_run", NewRun(id=id_, workflow="w", jobs=(first, sibling, cleanup, after_cleanup)))
    (running,) = client.exchange(want=10).jobs
    claimed = client.exchange([finish(running)], want=10).jobs
    assert {one.id for one in claimed} == {sibling.id, after_cleanup.id}
    assert client.apply("get", cleanup.id).state == "skipped"
    client.exchange(map(finish, claimed), want=10)
    assert client.apply("get_run", id_).status == "success"


def test_a_stale_finish_in_a_fast_batch_leaves_the_others_valid(clients):
    client = clients(want=10)
    run = plan_run((), (), (0, 1))
    client.apply("start_run", run)
    first, second = client.exchange(want=10).jobs
    stale = Finish(job=first.id, fence=first.fence + 1, kind="complete")
    assert client.exchange([stale, finish(second)], want=0).verdicts == ("stale", "ok")
    reply = client.exchange([finish(first)], want=10)
    assert (reply.verdicts, [claimed.id for claimed in reply.jobs]) == (("ok",), [run.jobs[2].id])


def test_a_run_being_cancelled_also_cancels_jobs_released_by_a_fast_finish(clients):
    """The run is marked as cancelled, but its jobs are not cancelled yet."""
    client = clients(want=10)
    run = plan_run((), (0,))
    client.apply("start_run", run)
    running = client.exchange(want=10).jobs
    client.exchange((), want=10)
    client.apply("cancel_run", run.id, "enough")
    assert client.exchange(map(finish, running), want=10).jobs == ()
    assert client.apply("get_run", run.id).status == "cancelled"


def test_exchanges_that_share_many_runs_never_deadlock(clients, admin, namespace):
    """Each exchange locks several runs, whose jobs come in any order; some runs are cancelled and retried."""
    before = _deadlocks(admin)
    workers = [clients(f"w{n}", want=10) for n in range(4)]
    runs = [plan_run((), (), (0, 1), (0,), (2, 3), timeout=3600 * SECOND) for _ in range(25)]
    for nth, run in enumerate(runs):
        workers[nth % 4].apply("start_run", run)
    done = threading.Event()

    def work(client):
        dice, jobs = random.Random(client.name), ()
        for _ in range(200):
            kinds = [dice.choice(("complete", "complete", "complete", "fail", "release")) for _ in jobs]
            finishes = [finish(claimed, kind) for claimed, kind in zip(jobs, kinds, strict=True)]
            dice.shuffle(finishes)
            jobs = client.exchange(finishes, want=dice.choice((1, 3, 7))).jobs
            if dice.random() < 0.1:
                run = dice.choice(runs)
                verb = dice.choice(("cancel_run", "rerun_failed", "trigger"))
                args = {"cancel_run": (run.id, "why not"), "trigger": (dice.choice(run.jobs).id,)}.get(verb, (run.id,))
                client.apply(verb, *args)
            if done.is_set():
                break
        client.exchange([finish(claimed) for claimed in jobs], want=0)

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(work, client) for client in workers]:
            each.result(120)
    while jobs := workers[0].exchange(want=100).jobs:
        workers[0].exchange([finish(claimed) for claimed in jobs], want=0)
    assert workers[1].apply("check_runs", 0) == []
    for run in runs:
        stored = workers[1].apply("get_run", run.id)
        assert stored.finished, stored
        events = workers[1].apply("run_events", run.id, limit=10_000)
        assert [event.seq for event in events] == list(range(1, stored.events + 1))
    assert _deadlocks(admin) == before


def _deadlocks(admin):
    return admin.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()


@pytest.mark.slow
def test_a_job_added_while_its_run_is_being_cancelled_is_cancelled(clients):
    """Neither transaction sees the other's change, so both lock the run."""
    one, other = clients("one", want=10), clients("other", want=10)
    barrier = threading.Barrier(2)

    def add(claimed):
        barrier.wait()
        return one.exchange([finish(claimed, adds=(job(), job()), next=job())], want=0)

    def cancel(run):
        barrier.wait()
        return other.apply("cancel_run", run.id, "enough")

    with ThreadPoolExecutor(2) as pool:
        for _ in range(40):
            run = plan_run((), (0,))
            one.apply("start_run", run)
            (claimed,) = one.exchange(want=1).jobs
            for future in [pool.submit(add, claimed), pool.submit(cancel, run)]:
                future.result(30)
            stored = one.apply("get_run", run.id)
            assert (stored.status, stored.counts) == ("cancelled", {"cancelled": 4})


def test_the_order_of_all_events_is_that_of_each_run(clients, admin):
    """Also if the transaction that locks the run second has begun first."""
    one, other = clients("one", want=10), clients("other", want=10)
    first, second = plan_run((), ()), plan_run(())
    for run in (first, second):
        one.apply("start_run", run)
    claimed = [one.exchange(want=1).jobs[0], other.exchange(want=1).jobs[0]]
    with admin.transaction(), ThreadPoolExecutor(1) as pool:
        admin.execute("SELECT FROM backstay_run WHERE id = %s FOR UPDATE", (first.id,))
        # This exchange gets its transaction id, and waits for the lock of the run.
        late = pool.submit(one.exchange, [finish(claimed[0])], 0)
        (third,) = other.exchange(want=1).jobs
        assert third.run == second.id
        other.exchange([finish(third)], want=0)
        admin.execute("COMMIT")
        late.result(30)
    other.exchange([finish(claimed[1])], want=0)
    page = one.apply("events", 0)
    for run in (first, second):
        mine = [event for event in page.events if event.run == run.id]
        assert mine == one.apply("run_events", run.id)
        assert mine[-1].kind == "run_finished"


def test_the_last_event_is_visible_without_a_later_write(clients, admin, backstay_postgres):
    """Also if transactions that began later have committed before the event was written."""
    one = clients("one", want=10)
    one.apply("start_run", plan_run(()))
    run = plan_run(())
    with psycopg.connect(backstay_postgres.url) as blocker, ThreadPoolExecutor(1) as pool:
        blocker.execute("LOCK TABLE backstay_run_event IN SHARE MODE")
        late = pool.submit(one.apply, "start_run", run)  # has its transaction id, and waits to write the event
        waits = "SELECT FROM pg_locks WHERE relation = 'backstay_run_event'::regclass AND NOT granted"
        assert eventually(lambda: admin.execute(waits).fetchall())
        admin.execute("SELECT pg_current_xact_id()")
        blocker.rollback()
        late.result(30)
    found = [event for event in one.apply("events", 0).events if event.run == run.id]
    assert found == one.apply("run_events", run.id)


def test_events_come_in_the_order_of_numbers_and_not_of_their_digits(clients, admin):
    """Transaction ids are compared as numbers, not as text: 10 comes after 9."""
    one = clients("one", want=10)
    runs = [plan_run(()) for _ in range(4)]
    for run in runs:
        one.apply("start_run", run)
    for mark, run in zip((9, 10, 99, 100), runs, strict=True):
        admin.execute("UPDATE backstay_run_event SET mark = %s::text::xid8 WHERE run = %s", (str(mark), run.id))
    found, cursor = [], ""
    while (page := one.apply("events", 0, cursor, 3)).events:
        found += [event.run for event in page.events]
        cursor = page.cursor
    assert found == [run.id for run in runs for _ in range(2)]


def test_simultaneous_events_share_one_row_and_pages_may_end_inside_it(clients, admin, namespace):
    one = clients("one", want=10)
    run = plan_run(*[()] * 200)
    one.apply("start_run", run)
    rows = "SELECT last - first + 1 FROM backstay_run_event WHERE space = %s ORDER BY number"
    assert [count for (count,) in admin.execute(rows, (namespace,))] == [80, 80, 41]
    whole = one.apply("run_events", run.id)
    assert [event.seq for event in whole] == list(range(1, 202))
    found, cursor = [], ""
    while (page := one.apply("events", 0, cursor, 7)).events:
        assert len(page.events) <= 7
        found += page.events
        cursor = page.cursor
    assert found == whole
    assert one.apply("run_events", run.id, 75, 10) == whole[75:85]


def test_an_edge_of_a_run_is_deleted_on_success_and_kept_on_failure(clients, admin, namespace):
    """The job keeps its blockers and receives their results."""
    one = clients("one", want=10)
    run = plan_run((), (), (0, 1, 0))
    first, second, last = (job.id for job in run.jobs)
    one.apply("start_run", run)
    jobs = {claimed.id: claimed for claimed in one.exchange().jobs}
    edges = "SELECT chain, ended, spoilt FROM backstay_job_after WHERE space = %s ORDER BY chain"
    assert admin.execute(edges, (namespace,)).fetchall() == [(first, False, False), (second, False, False)]
    one.exchange([finish(jobs[first], result=b"\x01"), finish(jobs[second], "fail")], want=0)
    assert admin.execute(edges, (namespace,)).fetchall() == [(second, True, True)]
    stored = one.apply("get", last)
    assert (stored.state, stored.after, stored.waits_for) == ("skipped", (first, second), ())
    one.apply("rerun_failed", run.id)
    assert one.apply("get", last).waits_for == (second,)
    (again,) = one.exchange().jobs
    (final,) = one.exchange([finish(again, result=b"\x02")]).jobs
    assert final.upstream == {first: b"\x01", second: b"\x02"}
    assert not admin.execute(edges, (namespace,)).fetchall()


@pytest.mark.slow
def test_dependents_are_found_by_their_index_also_with_a_plan_made_on_an_empty_table():
    """After a VACUUM of the empty table the planner estimates the same costs for all indexes."""
    with PostgresServer() as server:
        PostgresStoreClient(server.url, "n").close()  # creates the schema
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
        scans = [pair for pair in pairwise(plan) if "using backstay_job_after_" in pair[0]]
        assert scans
        for index, condition in scans:
            assert ("job =" if "_pkey" in index else "chain >=") in condition, plan


FILLED = """
INSERT INTO backstay_job_after (space, job, chain)
SELECT 'n', 'j' || i, 'first' FROM generate_series(1, 2000) i
UNION ALL SELECT 'n', 'last', 'j' || i FROM generate_series(1, 2000) i
"""


def _planned(connection, when):
    for name in ("release_hold", "release_heard"):
        text, names = number_placeholders(statement(name))
        connection.execute(f"PREPARE {name}_{when} AS ".encode() + text)
        given = ", ".join("'n'" if name == "space" else "NULL" for name in names)
        yield [line for (line,) in connection.execute(f"EXPLAIN EXECUTE {name}_{when} ({given})".encode())]
