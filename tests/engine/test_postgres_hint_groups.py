"""Hints and counters that travel alone: one round trip, answered as if each had come by itself."""

from __future__ import annotations

import pytest

from backstay import ConfigError
from backstay.engine.base import Ping, Publish, PublishHint, TakeHint
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.connection.wire import Wire
from backstay.engine.postgres.engine import PostgresEngine

pytestmark = pytest.mark.postgres

LIFE = 60_000_000


@pytest.fixture
def engine(backstay_postgres, namespace):
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    engine.apply(Ping())
    yield engine
    engine.close_blocking()


def hint(engine, name, count):
    return PublishHint(f"{engine.namespace}:hint:{name}", count, LIFE, f"{engine.namespace}:sched", "x")


def take(engine, name, n):
    return TakeHint(f"{engine.namespace}:hint:{name}", n, LIFE)


@pytest.mark.parametrize("company", [[], [Ping()]], ids=["alone", "with what must last"])
def test_takes_of_a_group_share_what_is_there(engine, company):
    engine.apply_many([hint(engine, "a", 5), hint(engine, "b", 1), *company])
    taken = engine.apply_many([take(engine, "b", 2), take(engine, "a", 3), take(engine, "a", 3), *company])
    assert taken[:3] == [1, 3, 2]
    assert engine.apply_many([take(engine, "a", 9), take(engine, "none", 9), *company])[:2] == [0, 9]


def test_a_counter_of_a_group_is_there_for_its_takes(engine):
    assert engine.apply_many([hint(engine, "a", 2), take(engine, "a", 5)]) == [None, 2]


def test_a_message_that_is_too_long_harms_no_other(engine):
    long = Publish(f"{engine.namespace}:x", "x" * 8000)
    published, refused, taken = engine.apply_many([hint(engine, "a", 2), long, take(engine, "a", 1)])
    assert (published, taken) == (None, 1)
    assert isinstance(refused, ConfigError)


def test_a_group_of_hints_is_one_round_trip_that_waits_for_no_disk(engine, monkeypatch):
    sent = []
    send = Wire.send

    def counted(self, statements):
        sent.append([text for text, _ in statements])
        return send(self, statements)

    monkeypatch.setattr(Wire, "send", counted)
    engine.apply_many([hint(engine, "a", 2), take(engine, "a", 1), take(engine, "b", 1)])
    (trip,) = sent
    assert b"SET LOCAL synchronous_commit = off" in trip
    engine.apply_many([hint(engine, "a", 2), Ping()])
    assert not any(b"synchronous_commit" in text for trip in sent[1:] for text in trip)
