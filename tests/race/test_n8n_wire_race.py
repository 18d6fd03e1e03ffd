"""Processes of Python and of n8n's Redis nodes compete for one scope: one holds it at a time, and all are served."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import pairwise

import pytest
from redis import Redis

from backstay.interop.n8n_wire import keys
from backstay.testing.waiting import eventually
from support.n8n import nodes as n8n_nodes

pytestmark = [pytest.mark.redis, pytest.mark.race]

PYTHON = """
import sys, time
from backstay.sync import Backstay
url, scope, path = sys.argv[1:4]
rounds, hold, poll = int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6])
with Backstay(url) as stay, open(path, "a") as journal:
    for _ in range(rounds):
        with stay.lock(scope, wire="n8n", ttl=60, wait=90, poll=poll):
            begin = time.monotonic_ns()
            time.sleep(hold)
            end = time.monotonic_ns()
        journal.write(f"{begin} {end}\\n")
"""


def turns(paths):
    """Return the (begin, end) of every hold, in order of time."""
    found = [tuple(map(int, line.split())) for path in paths for line in path.read_text().splitlines()]
    return sorted(found)


def assert_one_at_a_time(found):
    for (_, end), (begin, _) in pairwise(found):
        assert end <= begin


@pytest.fixture
def processes():
    started = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_backstay_and_n8n_exclude_each_other_and_all_are_served(backstay_redis, namespace, tmp_path, processes):
    rounds, python, n8n = 5, 4, 4
    paths = []
    for number in range(python + n8n):
        path = tmp_path / str(number)
        paths.append(path)
        args = [backstay_redis.url, namespace, str(path), str(rounds), "0.005", "0.02"]
        program = ["-c", PYTHON] if number < python else [n8n_nodes.__file__]
        processes.append(subprocess.Popen([sys.executable, *program, *args]))
    for process in processes:
        assert process.wait(250) == 0
    found = turns(paths)
    assert len(found) == rounds * (python + n8n)
    assert_one_at_a_time(found)
    with Redis.from_url(backstay_redis.url) as redis:
        assert not redis.exists(keys.lock_key(namespace), keys.meta_key(namespace))


@pytest.mark.parametrize("victim", ["python", "n8n"])
def test_a_killed_holder_blocks_the_scope_for_its_ttl_only(backstay_redis, namespace, tmp_path, processes, victim):
    """A killed process sends no release, so only the TTL frees the scope for both kinds of clients."""
    path = tmp_path / "journal"
    args = [backstay_redis.url, namespace, str(path), "1", "60", "0.02"]
    program = ["-c", PYTHON.replace("ttl=60", "ttl=1.5")] if victim == "python" else [n8n_nodes.__file__]
    dying = subprocess.Popen([sys.executable, *program, *args])
    processes.append(dying)
    with Redis.from_url(backstay_redis.url) as redis:
        assert eventually(lambda: redis.exists(keys.meta_key(namespace)))
        if victim == "n8n":
            redis.pexpire(keys.lock_key(namespace), 1500)
            redis.pexpire(keys.meta_key(namespace), 1500)
        dying.send_signal(signal.SIGKILL)
        dying.wait()
        args = [backstay_redis.url, namespace, str(path), "1", "0", "0.02"]
        other = [n8n_nodes.__file__] if victim == "python" else ["-c", PYTHON]
        after = subprocess.Popen([sys.executable, *other, *args])
        processes.append(after)
        assert after.wait(200) == 0
    assert len(turns([path])) == 1
