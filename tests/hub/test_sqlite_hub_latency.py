"""The SQLite hub: the latency to another process on the same file, and the cost of an idle listener."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys

import pytest

from backstay.engine.base import TakeHint, steady
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.testing.waiting import WITHIN

PUBLISHER = """
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
def test_a_message_of_another_process_arrives_within_50_ms(connect, namespace, tmp_path):
    """This includes messages after an idle time, in which the hub polls less often."""
    url = f"sqlite:///{tmp_path / 'hub.db'}?synchronous=normal"
    stay = connect(url)
    with (
        stay.hub.listen("news") as messages,
        subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, url, namespace], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as publisher,
    ):
        assert publisher.stdin
        assert publisher.stdout
        assert publisher.stdout.readline() == "ready\n"
        assert messages.next(timeout=2.5) is None  # the hub is idle from now on
        took = []
        for _ in range(40):
            publisher.stdin.write("\n")
            publisher.stdin.flush()
            message = messages.next(timeout=WITHIN)
            assert message is not None
            took.append(steady() - float(message.payload))  # both processes share this clock
            stay._core.hub._active = 0.0  # idle again after the current pause
            assert messages.next(timeout=random.uniform(0.01, 0.04)) is None
        publisher.stdin.close()
    print(f"median {statistics.median(took) * 1000:.1f} ms, most {max(took) * 1000:.1f} ms")
    assert statistics.median(took) < 0.05
    assert statistics.quantiles(took, n=10)[-1] < 0.05, took


@pytest.mark.timed
@pytest.mark.slow
def test_an_idle_listener_uses_less_than_one_percent_of_a_core(tmp_path):
    command = [sys.executable, "-c", IDLE, f"sqlite:///{tmp_path / 'hub.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    print(f"{float(done.stdout):.3%} of a core")
    assert float(done.stdout) <= 0.01


def test_a_hint_counter_expires_by_the_engines_clock(tmp_path):
    """After the expiry every take is allowed; a sweep deletes the row later."""
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
