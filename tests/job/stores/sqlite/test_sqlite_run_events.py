"""Events of runs on SQLite: rows, pages, cursors, namespaces."""

from __future__ import annotations

import pytest
from sqlite_store_client import fan

from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import ConfigError
from backstay.job.run_model import NewRun
from backstay.job.stores.sqlite.store import SqliteStore
from support.store_client import finish


def test_events_of_one_exchange_share_one_row(client):
    run, _ = client.start_run(fan(300))
    (first,) = client.exchange().jobs
    client.exchange([finish(first)], want=300)
    rows = client.rows("SELECT seq FROM backstay_run_event ORDER BY num")
    stored = client.apply("get_run", run)
    assert stored.events == 1 + 1 + 1 + 1 + 300 + 300
    assert len(rows) == 4  # the last exchange has 601 events, and a row holds at most 500
    assert rows[-1] == (stored.events,)


def test_pages_of_any_size_hold_every_event_once(client):
    """A row holds several events, and a page may end inside a row."""
    one, _ = client.start_run(fan(7))
    other, _ = client.start_run(fan(3))
    client.drain()
    whole = client.apply("events", 0).events
    assert sorted(whole, key=lambda event: (event.run, event.seq)) == sorted(
        [*client.apply("run_events", one), *client.apply("run_events", other)], key=lambda event: (event.run, event.seq)
    )
    for size in (1, 2, 5, 13, len(whole)):
        cursor, seen = "", []
        while (page := client.apply("events", 0, after=cursor, limit=size)).events:
            seen += page.events
            cursor = page.cursor
        assert tuple(seen) == whole
        events = client.apply("run_events", one)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        pages = [client.apply("run_events", one, after=n, limit=size) for n in range(0, len(events), size)]
        assert [event for page in pages for event in page] == events


def test_a_cursor_outlives_the_events_before_it(client):
    """Event numbers are not reused after all events have been deleted."""
    client.start_run({"a": []}, keep=0)
    client.drain()
    cursor = client.apply("events", 0).cursor
    assert client.apply("prune", 0, 1000) == 2
    assert client.rows("SELECT count(*) FROM backstay_run_event") == [(0,)]
    assert client.apply("events", 0, after=cursor).events == ()
    run, _ = client.start_run({"a": []})
    page = client.apply("events", 0, after=cursor)
    assert [(event.run, event.kind) for event in page.events] == [(run, "run_created"), (run, "ready")]
    assert client.apply("events", 0).events == page.events


def test_events_of_namespaces_are_separate(client):
    other = SqliteEngine(client.path, namespace="other", synchronous="off", clock=lambda: client.now)
    store = SqliteStore("other", "other")
    try:
        for n in range(3):
            client.start_run({"a": []})
            other.apply(store.start_run(NewRun(id=f"0-{n}", workflow="w")))
        assert {event.run for event in other.apply(store.events(0)).events} == {"0-0", "0-1", "0-2"}
        assert len(client.apply("events", 0).events) == 6
        assert other.apply(store.events(0, "$")).events == ()
    finally:
        other.close_blocking()


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "٣", "9" * 20])
def test_an_invalid_cursor_is_refused(client, cursor):
    with pytest.raises(ConfigError, match="cursor"):
        client.apply("events", 0, after=cursor)
