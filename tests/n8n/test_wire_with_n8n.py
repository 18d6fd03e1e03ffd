"""One lock and one count for Python (`wire="n8n"`) and for workflows in the real engines of n8n."""

from __future__ import annotations

import subprocess
import sys

import pytest
from lab.runner import chain, node
from patched import KEY
from redis import Redis

from backstay.interop.n8n_wire import keys
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch.patch import LockOptions, add_lock

pytestmark = pytest.mark.redis

EXECUTIONS, PROCESSES, ROUNDS = 8, 4, 2
#: Seconds: long enough for the last waiter to get its turn.
WAIT = 80

PROGRAM = """
import sys, time
from redis import Redis
from backstay.sync import Backstay
url, scope, events, me, rounds, wait = sys.argv[1:7]
redis = Redis.from_url(url)
with Backstay(url) as stay:
    for _ in range(int(rounds)):
        with stay.lock(scope, wire="n8n", ttl=120, wait=float(wait), poll=0.1):
            redis.rpush(events, f"in {me}")
            time.sleep(0.02)
            redis.rpush(events, f"out {me}")
"""


def append_event(name, events, word):
    """Return a node that appends to a list on the lock's own Redis, which gives the true order of events."""
    message = f"={word} {{{{ $execution.id }}}}"
    parameters = {"operation": "push", "list": events, "messageData": message, "tail": True}
    return node(name, "redis", 1, parameters, credentials={"redis": {"id": "redis", "name": "redis"}})


@pytest.mark.slow
def test_executions_and_python_processes_exclude_each_other_and_all_finish(lab_client, backstay_redis, tmp_path):
    """Eight executions of a patched workflow and four Python processes share one scope."""
    events = f"events-{lab_client.scope}"
    look = {"operation": "get", "propertyName": "seen", "key": events, "keyType": "list", "options": {}}
    body = [
        append_event("Enter", events, "in"),
        node("Work", "redis", 1, look, credentials={"redis": {"id": "redis", "name": "redis"}}),
        append_event("Leave", events, "out"),
    ]
    options = LockOptions(lab_client.scope, ttl_seconds=120, max_wait_seconds=WAIT)
    patched = add_lock(N8nWorkflow(chain(KEY, *body)), KEY, options)
    args = [backstay_redis.url, lab_client.scope, events]
    python = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, *args, f"python-{n}", str(ROUNDS), str(WAIT)])
        for n in range(PROCESSES)
    ]
    try:
        runs = [
            lab_client.start(patched.workflow, patched.others, items=[{"json": {"n": n}}]) for n in range(EXECUTIONS)
        ]
        done = [run.result() for run in runs]
        assert [one.status for one in done] == ["success"] * EXECUTIONS
        assert [process.wait(WAIT) for process in python] == [0] * PROCESSES
    finally:
        for process in python:
            process.kill()
            process.wait()
    with Redis.from_url(backstay_redis.url, decode_responses=True) as redis:
        recorded = redis.lrange(events, 0, -1)
        assert not redis.exists(keys.lock_key(lab_client.scope), keys.meta_key(lab_client.scope))
    assert len(recorded) == 2 * (EXECUTIONS + PROCESSES * ROUNDS)
    for came, left in zip(recorded[::2], recorded[1::2], strict=True):
        assert came.replace("in ", "out ", 1) == left
    served = {line.partition(" ")[2] for line in recorded}
    assert len(served) == EXECUTIONS + PROCESSES
    assert {f"python-{n}" for n in range(PROCESSES)} < served


def test_a_python_limiter_and_rate_limit_check_agree_count_by_count(over_redis, scope, backstay_redis, connect):
    stay = connect(backstay_redis.url)
    limit = stay.limit("api", "6/10000000s", wire="n8n")
    with Redis.from_url(backstay_redis.url, decode_responses=True) as redis:
        for count in range(1, 9):
            if count % 2:
                result = limit.hit(scope)
                reply = {
                    "allowed": result.allowed,
                    "scope": result.scope,
                    "count": result.count,
                    "limit": result.limit,
                }
            else:
                (reply,) = over_redis.call("rate_limit_check", scope=scope, limit=6, windowSeconds=10_000_000).items
            assert reply == {"allowed": count <= 6, "scope": scope, "count": count, "limit": 6}
            (key,) = [key for key in redis.scan_iter(count=1000) if key.startswith(f"{keys.LIMIT_PREFIX}{scope}-")]
            assert redis.get(key) == str(count)


def test_n8n_releases_a_lock_of_python_and_the_reverse(over_redis, scope, backstay_redis, connect):
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
