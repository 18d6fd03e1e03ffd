"""How soon another process on the same file hears, and what listening costs when nothing happens."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys

import pytest

from backstay.engine.base import TakeHint, steady
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.testing.waiting import WITHIN

SPEAKER = """
import sys
from backstay.engine.base import steady
from backstay.sync import Backstay
with Backstay(sys.argv[1], namespace=sys.argv[2]) as stay:
    print("ready", flush=True)
    for line in sys.stdin:
        stay.hub.publish("news", repr(steady()))
"""

IDLE = """
import sys, time
from backstay.sync import Backstay
with Backstay(sys.argv[1]) as stay, stay.hub.listen("news") as messages:
    assert messages.next(timeout=3) is None  # until it is quiet
    began, used = time.monotonic(), time.process_time()
    assert messages.next(timeout=4) is None
    print((time.process_time() - used) / (time.monotonic() - began))
"""


@pytest.mark.timed
@pytest.mark.slow
def test_another_process_is_heard_within_50_ms(connect, namespace, tmp_path):
    """Also after a quiet time, when looks are rarer."""
    url = f"sqlite:///{tmp_path / 'hub.db'}?synchronous=normal"
    stay = connect(url)
    with (
        stay.hub.listen("news") as messages,
        subprocess.Popen(
            [sys.executable, "-c", SPEAKER, url, namespace], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as speaker,
    ):
        assert speaker.stdin
        assert speaker.stdout
        assert speaker.stdout.readline() == "ready\n"
        assert messages.next(timeout=2.5) is None  # quiet from now on
        took = []
        for _ in range(40):
            speaker.stdin.write("\n")
            speaker.stdin.flush()
            message = messages.next(timeout=WITHIN)
            assert message is not None
            took.append(steady() - float(message.payload))  # both processes share this clock
            stay._core.hub._active = 0.0  # quiet again, once the pause under way is over
            assert messages.next(timeout=random.uniform(0.01, 0.04)) is None
        speaker.stdin.close()
    print(f"median {statistics.median(took) * 1000:.1f} ms, most {max(took) * 1000:.1f} ms")
    assert statistics.median(took) < 0.05
    assert statistics.quantiles(took, n=10)[-1] < 0.05, took


@pytest.mark.timed
@pytest.mark.slow
def test_listening_costs_less_than_a_hundredth_of_a_core_when_nothing_happens(tmp_path):
    command = [sys.executable, "-c", IDLE, f"sqlite:///{tmp_path / 'hub.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    print(f"{float(done.stdout):.3%} of a core")
    assert float(done.stdout) <= 0.01


def test_a_counters_life_ends_by_the_engines_clock(tmp_path):
    """Expired on SQLite: everybody may come, and the row is swept later."""
    from backstay.engine.base import PublishHint

    now = 1_000_000_000
    engine = SqliteEngine(str(tmp_path / "hub.db"), clock=lambda: now)
    life = 60_000_000
    try:
        engine.apply(PublishHint("p:hint:1", 1, life, "p:sched", "x"))
        assert [engine.apply(TakeHint("p:hint:1", 2, life)) for _ in range(2)] == [1, 0]
        now += life - 1
        assert engine.apply(TakeHint("p:hint:1", 2, life)) == 0
        now += 1
        assert engine.apply(TakeHint("p:hint:1", 2, life)) == 2
        now += 1
        db = engine.connect()
        try:
            engine._sweep(db)
            assert db.execute("SELECT count(*) FROM backstay_hint_counter").fetchone() == (0,)
        finally:
            db.close()
        assert engine.apply(TakeHint("p:hint:1", 2, life)) == 2
    finally:
        engine.close_blocking()
