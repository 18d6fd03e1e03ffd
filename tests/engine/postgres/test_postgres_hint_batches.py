"""A batch of only hints and counters takes one round trip, with the replies of single operations."""

from __future__ import annotations

import pytest

from backstay import ConfigError
from backstay.engine.base import Ping, Publish, PublishHint, TakeHint
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.connection.wire import Pipeline
from backstay.engine.postgres.engine import PostgresEngine
from support.agreement.engine_agreement import NeverDue

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


@pytest.mark.parametrize("other_ops", [[], [Ping()]], ids=["alone", "with a durable operation"])
def test_takes_of_one_batch_share_a_counter(engine, other_ops):
    engine.apply_many([hint(engine, "a", 5), hint(engine, "b", 1), *other_ops])
    taken = engine.apply_many([take(engine, "b", 2), take(engine, "a", 3), take(engine, "a", 3), *other_ops])
    assert taken[:3] == [1, 3, 2]
    assert engine.apply_many([take(engine, "a", 9), take(engine, "none", 9), *other_ops])[:2] == [0, 9]


def test_a_take_sees_a_counter_published_in_the_same_batch(engine):
    assert engine.apply_many([hint(engine, "a", 2), take(engine, "a", 5)]) == [None, 2]


def test_a_message_that_is_too_long_fails_alone_in_its_batch(engine):
    long = Publish(f"{engine.namespace}:x", "x" * 8000)
    published, refused, taken = engine.apply_many([hint(engine, "a", 2), long, take(engine, "a", 1)])
    assert (published, taken) == (None, 1)
    assert isinstance(refused, ConfigError)


def test_a_batch_of_hints_is_one_round_trip_without_an_fsync(engine, monkeypatch):
    sent = []
    send = Pipeline.send

    def counted(self, statements):
        sent.append([text for text, _ in statements])
        return send(self, statements)

    engine.apply_many([Ping()])
    engine._connections[0].sweep_schedule = NeverDue()  # a sweep has round trips of its own
    monkeypatch.setattr(Pipeline, "send", counted)
    engine.apply_many([hint(engine, "a", 2), take(engine, "a", 1), take(engine, "b", 1)])
    (trip,) = sent
    assert b"SET LOCAL synchronous_commit = off" in trip
    engine.apply_many([hint(engine, "a", 2), Ping()])
    assert not any(b"synchronous_commit" in text for trip in sent[1:] for text in trip)
