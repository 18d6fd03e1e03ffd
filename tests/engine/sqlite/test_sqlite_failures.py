"""SQLite failures: a full disk, a stopped process with the write lock, a clock set back. Writes are atomic and
resume.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

import backstay
import backstay.sync
from backstay import EngineUnavailable
from backstay.engine.base import steady
from backstay.engine.sqlite import engine as engine_module
from backstay.engine.sqlite.engine import SqliteEngine, host_clock, host_ticks
from backstay.testing.waiting import WITHIN, eventually

pytestmark = pytest.mark.chaos

BLOCKER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
db.execute("UPDATE backstay_clock SET now = now")
print("inside", flush=True)
sys.stdin.readline()
db.execute("COMMIT")
"""


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid():
        pytest.skip("a disk of one megabyte needs root to mount")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("root without the right to mount")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=False)


def fill(path):
    """Fill the disk to its last byte."""
    with path.open("wb", buffering=0) as file:
        size = 65536
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2


def fill_with_locks(stay, prefix):
    """Acquire locks until the disk is full; return the name of the lock that did not fit."""
    fits = True
    for n in range(1000):
        name = f"{prefix}-{n}"
        try:
            stay.lock(name, ttl=30).acquire(wait=0)
        except EngineUnavailable as error:
            fits = "full" not in str(error)
            break
    assert not fits
    return name


def test_a_full_disk_raises_engine_unavailable_and_rolls_back_until_space_is_free(small_disk):
    url = f"sqlite:///{small_disk}/a.db"
    with backstay.sync.Backstay(url, profile=backstay.MAX_AVAILABILITY) as stay:
        before = stay.lock("x", ttl=30).acquire(wait=0)
        fill(small_disk / "filler")
        full = fill_with_locks(stay, "more")
        assert not stay.locks.inspect(full).held
        assert stay.locks.inspect("x").holders[0].lock_id == before.id
        (small_disk / "filler").unlink()
        with stay.lock(full, ttl=30, wait=WITHIN):
            pass
        before.release()


def test_a_file_at_its_size_limit_raises_engine_unavailable_until_the_limit_is_raised(tmp_path, monkeypatch):
    opened = []
    original = engine_module.connect

    def connect(path, **options):
        opened.append(original(path, **options))
        return opened[-1]

    monkeypatch.setattr(engine_module, "connect", connect)
    url = f"sqlite:///{tmp_path}/a.db"
    with backstay.sync.Backstay(url, profile=backstay.MAX_AVAILABILITY) as stay:
        pages = opened[0].execute("PRAGMA page_count").fetchone()[0]
        opened[0].execute(f"PRAGMA max_page_count = {pages + 2}")
        full = fill_with_locks(stay, "long" * 100)
        assert not stay.locks.inspect(full).held
        opened[0].execute("PRAGMA max_page_count = 100000")
        with stay.lock(full, ttl=30, wait=WITHIN):
            pass


@pytest.fixture
def blocked(tmp_path):
    """A Backstay on a file, and another process inside a write transaction on it."""
    path = tmp_path / "a.db"
    profile = backstay.MAX_AVAILABILITY
    with backstay.sync.Backstay(f"sqlite:///{path}?timeout=0.3", profile=profile) as stay:
        process = subprocess.Popen(
            [sys.executable, "-c", BLOCKER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "inside\n"
        yield stay, process
        process.kill()
        process.communicate()


@pytest.mark.parametrize("end", ["commits", "is killed"])
def test_a_process_stopped_inside_a_transaction_stalls_writers_until_it_ends(blocked, end):
    stay, blocker = blocked
    os.kill(blocker.pid, signal.SIGSTOP)
    started = steady()
    with pytest.raises(EngineUnavailable, match="locked by another process"):
        stay.lock("x").acquire(wait=0)
    assert 0.3 <= steady() - started < 5
    assert not stay.locks.inspect("x").held  # reads are not blocked
    if end == "commits":
        os.kill(blocker.pid, signal.SIGCONT)
        blocker.stdin.write("go on\n")
        blocker.stdin.flush()
    else:
        blocker.kill()
    blocker.wait(WITHIN)
    with stay.lock("x", wait=WITHIN):
        pass


def test_a_write_succeeds_when_the_stall_ends_within_the_timeout(blocked, tmp_path):
    stay, blocker = blocked
    timer = threading.Timer(0.1, blocker.kill)
    timer.start()
    with stay.lock("x", wait=0):
        pass
    timer.join()


def test_a_process_that_starts_during_a_stall_can_read(blocked, tmp_path):
    """The schema exists already, so opening needs no write lock."""
    with backstay.sync.Backstay(f"sqlite:///{tmp_path}/a.db?timeout=0.3") as late:
        assert not late.locks.inspect("x").held


class Clock:
    """The host's clock, set forward and back by the test."""

    def __init__(self):
        self.shift = 0.0

    def __call__(self):
        return host_clock() + int(self.shift * 1_000_000)


@pytest.fixture
def timed(tmp_path):
    clock = Clock()
    engine = SqliteEngine(str(tmp_path / "a.db"), clock=clock, ticks=host_ticks)
    with backstay.sync.Backstay(engine=engine) as stay:
        yield stay, clock
    engine.close_blocking()


def test_a_clock_set_back_never_moves_fences_back(timed):
    stay, clock = timed
    fences = []
    for shift in (0, -3600, -86400 * 400, 0, -10, 60, 0):
        clock.shift = shift
        lease = stay.lock("x", ttl=5).acquire(wait=WITHIN)
        fences.append(lease.fence)
        lease.release()
    assert fences == sorted(set(fences))


def test_a_clock_set_back_never_moves_fences_back_for_a_process_that_starts_later(timed, tmp_path):
    stay, clock = timed
    clock.shift = 3600
    before = stay.lock("x", ttl=5).acquire(wait=0)
    before.release()
    with backstay.sync.Backstay(f"sqlite:///{tmp_path}/a.db") as other:
        after = other.lock("x", ttl=5).acquire(wait=WITHIN)
        assert after.fence > before.fence
        after.release()


@pytest.mark.timed
@pytest.mark.slow
def test_a_clock_set_back_loses_no_lease(timed):
    stay, clock = timed
    lease = stay.lock("x", ttl=1).acquire(wait=0)
    clock.shift = -60
    deadline = steady() + 3
    while steady() < deadline:
        assert not lease.is_lost, lease.loss()
        threading.Event().wait(0.02)
    lease.release()


def test_a_clock_set_back_leaves_no_ticket_of_waiters_that_timed_out(timed):
    stay, clock = timed
    held = stay.lock("x", ttl=30).acquire(wait=0)
    clock.shift = -60
    outcome = []

    def wait():
        try:
            stay.lock("x", ttl=5).acquire(wait=0.3)
        except backstay.LockTimeout as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiter.join()
    assert outcome
    assert stay.locks.inspect("x").waiter_count == 0
    held.release()


def test_a_clock_set_forward_ends_leases_and_fences_stay_in_order(timed):
    stay, clock = timed
    before = stay.lock("x", ttl=30, renew=False).acquire(wait=0)
    clock.shift = 3600
    after = stay.lock("x", ttl=30).acquire(wait=0)
    assert after.fence > before.fence
    with pytest.raises(backstay.NotOwner):
        before.release()
    after.release()


@pytest.mark.slow
def test_a_dead_holders_lock_expires_although_the_clock_was_set_back(timed):
    """The TTL is measured by the monotonic clock."""
    stay, clock = timed
    stay.lock("x", ttl=0.5, renew=False).acquire(wait=0)  # never released
    clock.shift = -60
    taken = []

    def wait():
        taken.append(stay.lock("x", ttl=5).acquire(wait=WITHIN))

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    try:
        assert eventually(lambda: taken, within=5)
    finally:
        clock.shift = 0
        waiter.join()


def test_inspect_works_after_a_writer_crashed(tmp_path):
    """A crash leaves a write-ahead log to recover; the first reader must not fail because of it."""
    path = tmp_path / "a.db"
    url = f"sqlite:///{path}"
    script = (
        "import os, sys; from backstay.sync import Backstay\n"
        "stay = Backstay(sys.argv[1]).open(); stay.lock('x', ttl=60).acquire(wait=0); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, url], check=False, timeout=30)
    with backstay.sync.Backstay(url) as stay:
        assert stay.locks.inspect("x").held
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
