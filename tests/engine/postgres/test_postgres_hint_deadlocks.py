"""Two processes take from the same counters in opposite orders without a deadlock, and the sums are right."""

from __future__ import annotations

import json
import subprocess
import sys

import psycopg
import pytest

from backstay.engine.base import Ping, PublishHint, TakeHint
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine

pytestmark = [pytest.mark.postgres, pytest.mark.race]

LIFE = 60_000_000
HINTS, ROUNDS = 12, 60

TAKER = """
import json, sys, warnings
warnings.simplefilter("error")
from backstay.engine.base import Ping, TakeHint
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine

url, namespace, rounds, *hints = sys.argv[1:]
engine = PostgresEngine(parse(url), namespace=namespace)
engine.apply(Ping())
print("ready", flush=True)
sys.stdin.readline()
taken, errors = dict.fromkeys(hints, 0), []
for _ in range(int(rounds)):
    for hint, reply in zip(hints, engine.apply_many([TakeHint(hint, 1, 60_000_000) for hint in hints])):
        if isinstance(reply, BaseException):
            errors.append(repr(reply))
        else:
            taken[hint] += reply
engine.close_blocking()
print(json.dumps([taken, errors]))
"""


def deadlocks(url):
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT pg_stat_clear_snapshot()")
        return db.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()[0]


@pytest.fixture
def hints(backstay_postgres, namespace):
    """Counters that hold more than the tests take."""
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    engine.apply(Ping())
    names = [f"{namespace}:hint:{nth:02}" for nth in range(HINTS)]
    for name in names:
        engine.apply(PublishHint(name, 10_000, LIFE, f"{namespace}:sched", "x"))
    yield names
    assert [engine.apply(TakeHint(name, 10_000, LIFE)) for name in names] == [10_000 - 2 * ROUNDS] * HINTS
    engine.close_blocking()


def test_takes_in_opposite_orders_do_not_deadlock(backstay_postgres, namespace, hints):
    before = deadlocks(backstay_postgres.url)
    arguments = [sys.executable, "-c", TAKER, backstay_postgres.url, namespace, str(ROUNDS)]
    takers = [
        subprocess.Popen([*arguments, *order], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for order in (hints, hints[::-1])
    ]
    try:
        for taker in takers:
            assert taker.stdout.readline() == "ready\n"
        for taker in takers:
            taker.stdin.write("go\n")
            taker.stdin.flush()
        outputs = [json.loads(taker.communicate(timeout=60)[0]) for taker in takers]
    finally:
        for taker in takers:
            taker.kill()
            taker.wait()
    for taken, errors in outputs:
        assert errors == []
        assert set(taken.values()) == {ROUNDS}
    assert deadlocks(backstay_postgres.url) == before
