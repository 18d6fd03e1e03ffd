"""One lock and one count for Python (`wire="n8n"`) and for workflows in the real engines of n8n."""

from __future__ import annotations

import subprocess
import sys

import pytest
from lab.stage import chain, node
from redis import Redis
from woven import KEY

from backstay.interop.n8n_wire import keys
from backstay.n8n.model import Workflow
from backstay.n8n.patch.patch import LockOptions, add_lock

pytestmark = pytest.mark.redis

EXECUTIONS, PROCESSES, ROUNDS = 8, 4, 2
#: Long enough for all the others before the last one.
WAIT = 80

PROGRAM = """
import sys, time
from redis import Redis
from backstay.sync import Backstay
url, scope, book, me, rounds, wait = sys.argv[1:7]
redis = Redis.from_url(url)
with Backstay(url) as stay:
    for _ in range(int(rounds)):
        with stay.lock(scope, wire="n8n", ttl=120, wait=float(wait), poll=0.1):
            redis.rpush(book, f"in {me}")
            time.sleep(0.02)
            redis.rpush(book, f"out {me}")
"""


def stamp(name, book, word):
    """A node that writes into the book, on the server that keeps the lock: its order is the truth."""
    said = f"={word} {{{{ $execution.id }}}}"
    parameters = {"operation": "push", "list": book, "messageData": said, "tail": True}
    return node(name, "redis", 1, parameters, credentials={"redis": {"id": "redis", "name": "redis"}})


@pytest.mark.slow
def test_executions_and_processes_take_turns_and_all_are_served(desk, backstay_redis, tmp_path):
    """Eight executions of a woven workflow and four Python processes, one scope: never two at once."""
    book = f"book-{desk.scope}"
    look = {"operation": "get", "propertyName": "seen", "key": book, "keyType": "list", "options": {}}
    body = [
        stamp("Enter", book, "in"),
        node("Work", "redis", 1, look, credentials={"redis": {"id": "redis", "name": "redis"}}),
        stamp("Leave", book, "out"),
    ]
    woven = add_lock(Workflow(chain(KEY, *body)), KEY, LockOptions(desk.scope, ttl_seconds=120, max_wait_seconds=WAIT))
    args = [backstay_redis.url, desk.scope, book]
    python = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, *args, f"python-{n}", str(ROUNDS), str(WAIT)])
        for n in range(PROCESSES)
    ]
    try:
        runs = [desk.start(woven.workflow, woven.others, items=[{"json": {"n": n}}]) for n in range(EXECUTIONS)]
        done = [run.result() for run in runs]
        assert [one.status for one in done] == ["success"] * EXECUTIONS
        assert [process.wait(WAIT) for process in python] == [0] * PROCESSES
    finally:
        for process in python:
            process.kill()
            process.wait()
    with Redis.from_url(backstay_redis.url, decode_responses=True) as redis:
        told = redis.lrange(book, 0, -1)
        assert not redis.exists(keys.lock_key(desk.scope), keys.meta_key(desk.scope))
    assert len(told) == 2 * (EXECUTIONS + PROCESSES * ROUNDS)
    for came, left in zip(told[::2], told[1::2], strict=True):
        assert came.replace("in ", "out ", 1) == left
    served = {line.partition(" ")[2] for line in told}
    assert len(served) == EXECUTIONS + PROCESSES
    assert {f"python-{n}" for n in range(PROCESSES)} < served


def test_a_python_limiter_and_rate_limit_check_agree_count_by_count(over_redis, scope, backstay_redis, connect):
    stay = connect(backstay_redis.url)
    limit = stay.limit("api", "6/10000000s", wire="n8n")
    with Redis.from_url(backstay_redis.url, decode_responses=True) as redis:
        for count in range(1, 9):
            if count % 2:
                said = limit.hit(scope)
                told = {"allowed": said.allowed, "scope": said.scope, "count": said.count, "limit": said.limit}
            else:
                (told,) = over_redis.call("rate_limit_check", scope=scope, limit=6, windowSeconds=10_000_000).items
            assert told == {"allowed": count <= 6, "scope": scope, "count": count, "limit": 6}
            (key,) = [key for key in redis.scan_iter(count=1000) if key.startswith(f"{keys.LIMIT_PREFIX}{scope}-")]
            assert redis.get(key) == str(count)


def test_n8n_releases_what_python_took_and_the_reverse(over_redis, scope, backstay_redis, connect):
    stay = connect(backstay_redis.url)
    lease = stay.lock(scope, wire="n8n", ttl=60).acquire(lock_id="ours", workflow_name="Python")
    failed = over_redis.call("lock_release", scope=scope, lock_id="another")
    assert "LOGIC ERROR" in str(failed.error)
    assert "Python" in str(failed.error)
    (done,) = over_redis.call("lock_release", scope=scope, lock_id="ours").items
    assert (done["released"], done["idempotent"]) == (True, False)
    assert lease.release().idempotent is True
    (taken,) = over_redis.call("lock_acquisition", scope=scope, ttl_seconds=60, workflow_name="n8n").items
    assert stay.locks.inspect(scope, wire="n8n").holders[0].workflow_name == "n8n"
    assert stay.locks.release(scope, taken["lock_id"], wire="n8n").idempotent is False
