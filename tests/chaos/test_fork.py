"""A forked child is a separate client: a new identity, none of the parent's leases, its own locks."""

import json
import subprocess
import sys

import pytest

from backstay.testing.servers import RedisServer, say
from backstay.testing.waiting import eventually
from support.servers import running

pytestmark = [pytest.mark.chaos, pytest.mark.race]

SCRIPT = """
import json, os, sys, warnings
warnings.simplefilter("error")
import backstay
from backstay.sync import Backstay

url, report = sys.argv[1], {}
stay = Backstay(url).open()
lease = stay.lock("fork", ttl=30).acquire(wait=0)
waits = stay.lock("other", ttl=30).acquire(wait=0)
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    mine = {}
    try:
        mine["inherited_is_lost"] = lease.is_lost
        mine["reason"] = lease.reason
        try:
            lease.check()
        except backstay.LeaseLost:
            mine["check"] = "LeaseLost"
        try:
            stay.lock("fork").acquire(wait=0)
        except backstay.LockHeld as error:
            mine["held_by_parent"] = error.holder.lock_id == lease.id
        own = stay.lock("child", ttl=5).acquire(wait=0)
        mine["fence"] = own.fence
        mine["identity"] = stay.locks.inspect("child").holders[0].execution_id
        own.release()
        mine["waited"] = stay.lock("other", ttl=5).acquire(wait=20).fence > waits.fence
        stay.close()
    except BaseException as error:
        mine["failed"] = repr(error)
    os.write(writer, json.dumps(mine).encode())
    os._exit(0)
os.close(writer)
import time
deadline = time.monotonic() + 20
while not stay.locks.inspect("other").queue and time.monotonic() < deadline:
    time.sleep(0.01)
waits.release()
report["child"] = json.loads(os.read(reader, 65536))
report["status"] = os.waitpid(child, 0)[1]
lease.check()
lease.renew()
report["parent_identity"] = stay.locks.inspect("fork").holders[0].execution_id
report["released"] = not lease.release().idempotent
stay.lock("child", ttl=5).acquire(wait=10).release()
stay.close()
print(json.dumps(report))
"""

LOOP = """
import asyncio, os, sys, warnings
import backstay

async def parent(stay):
    await stay.open()
    return await stay.lock("loop", ttl=30).acquire(wait=0)

async def child(url, inherited):
    assert inherited.is_lost
    async with backstay.Backstay(url) as stay:
        async with stay.lock("mine", ttl=5, wait=5):
            return (await stay.lock("loop").try_acquire()) is None

runner = asyncio.Runner()
stay = backstay.Backstay(sys.argv[1])
lease = runner.run(parent(stay))
pid = os.fork()
if pid == 0:
    os._exit(0 if asyncio.new_event_loop().run_until_complete(child(sys.argv[1], lease)) else 1)
assert os.waitpid(pid, 0)[1] == 0
assert not lease.is_lost
assert not runner.run(lease.release()).idempotent
runner.run(stay.close())
runner.close()
print("fine")
"""

DURABLE = """
import json, os, signal, sys, threading, time, warnings
warnings.simplefilter("error")
from backstay.gate import durability
from backstay.sync import Backstay

durability.CONFIRM_WITHIN = 30.0
url, replica = sys.argv[1], int(sys.argv[2])
stay = Backstay(url, namespace="fork-durable").open()


def durable(name):
    return stay.lock(name, ttl=30, durability="replicas:1").acquire(wait=0)


first = durable("first")
(second_link,) = stay.engine.replica_acks()._threads.links.values()
os.kill(replica, signal.SIGSTOP)
granted = []
thread = threading.Thread(target=lambda: granted.append(durable("waits")))
thread.start()
deadline = time.monotonic() + 20
while not stay.locks.inspect("waits").held and time.monotonic() < deadline:
    time.sleep(0.01)
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    mine = {}
    try:
        mine["own_link"] = not second_link.ready
        stay.lock("plain", wait=0).acquire().release()
        os.kill(replica, signal.SIGCONT)
        lease = durable("child")
        mine["granted"] = lease.fence > first.fence
        lease.release()
        stay.close()
    except BaseException as error:
        mine["failed"] = repr(error)
    os.write(writer, json.dumps(mine).encode())
    os._exit(0)
os.close(writer)
report = {"child": json.loads(os.read(reader, 65536)), "status": os.waitpid(child, 0)[1]}
thread.join(20)
report["granted"] = bool(granted) and not granted[0].is_lost
report["same_link"] = second_link.ready
again = durable("again")
report["link_used_again"] = second_link in stay.engine.replica_acks()._threads.links.values()
report["released"] = [not lease.release().idempotent for lease in (first, *granted, again)]
stay.close()
print(json.dumps(report))
"""


def run(script, url, *more):
    done = subprocess.run(
        [sys.executable, "-c", script, url, *more], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/fork.db"
    if request.param == "postgres":
        return request.getfixturevalue("backstay_postgres").url
    return f"redis://127.0.0.1:{request.getfixturevalue('backstay_redis').port}/7"


def test_a_forked_child_has_its_own_locks_and_none_of_its_parent(url):
    report = json.loads(run(SCRIPT, url))
    child = report["child"]
    assert "failed" not in child, child["failed"]
    assert report["status"] == 0
    assert child["inherited_is_lost"]
    assert "fork" in child["reason"]
    assert child["check"] == "LeaseLost"
    assert child["held_by_parent"]
    assert child["identity"] != report["parent_identity"]
    assert child["waited"]
    assert report["released"]


def test_a_fork_beside_an_event_loop_keeps_the_parents_lease(url):
    assert run(LOOP, url) == "fine\n"


@pytest.mark.redis
def test_a_fork_during_a_replica_wait_gives_the_child_its_own_connections():
    """Another thread waits for a paused replica. The child opens its own connections, and those of the parent stay
    usable.
    """
    with (
        running(RedisServer()) as master,
        running(RedisServer(options=("--replicaof", "127.0.0.1", str(master.port)))) as replica,
    ):
        assert eventually(lambda: b"state=online" in say(master, "INFO", "replication"))
        report = json.loads(run(DURABLE, master.url, str(replica.pid)))
    assert report == {
        "child": {"own_link": True, "granted": True},
        "status": 0,
        "granted": True,
        "same_link": True,
        "link_used_again": True,
        "released": [True, True, True],
    }


BUSY = """
import json, os, sys, threading, time
from backstay.sync import Backstay

stay = Backstay(sys.argv[1]).open()
stop = threading.Event()

def work():
    while not stop.is_set():
        with stay.lock("busy", ttl=5):
            pass

worker = threading.Thread(target=work)
worker.start()
listener = stay.hub.listen("news").__enter__()
report = []
for n in range(12):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with stay.lock(f"child {n}", ttl=5, wait=1):
                outcome = "held"
        except BaseException as error:
            outcome = repr(error)
        os.write(writer, outcome.encode())
        os._exit(0)
    os.close(writer)
    report.append(os.read(reader, 4096).decode())
    os.waitpid(child, 0)
    time.sleep(0.013)
stop.set()
worker.join()
stay.hub.publish("news", "still here")
with Backstay(sys.argv[1]) as other:
    other.hub.publish("news", "from outside")
report += sorted(message.payload for message in (listener.next(10), listener.next(10)))
listener.__exit__(None, None, None)
stay.close()
print(json.dumps(report))
"""


def test_a_child_that_is_forked_while_sqlite_is_written_can_write(tmp_path):
    """SQLite counts file locks in memory. A child that inherited the count of an open transaction would never release
    them.
    """
    url = f"sqlite:///{tmp_path}/a.db?timeout=5"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUSY, url], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.stderr == ""
    assert json.loads(ended.stdout) == ["held"] * 12 + ["from outside", "still here"]


SEVERAL = """
import os, sys, threading
from backstay.sync import Backstay

stay = Backstay(sys.argv[1]).open()
failed = []

def fork(k):
    for n in range(10):
        child = os.fork()
        if child == 0:
            try:
                with stay.lock(f"child {k} {n}", ttl=5, wait=5):
                    pass
                os._exit(0)
            except BaseException:
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            failed.append((k, n))
        with stay.lock(f"parent {k}", ttl=5, wait=5):
            pass

threads = [threading.Thread(target=fork, args=(k,)) for k in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
stay.close()
print(failed)
"""


def test_concurrent_forks_release_no_lock_of_another_thread(tmp_path):
    url = f"sqlite:///{tmp_path}/a.db?timeout=5"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SEVERAL, url], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
