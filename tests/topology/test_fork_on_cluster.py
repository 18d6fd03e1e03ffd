"""A forked child has its own connections to every node of a group, and none of the parent's leases."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from node_names import one_on_each

pytestmark = [pytest.mark.redis, pytest.mark.chaos]

SCRIPT = """
import json, os, sys, warnings
warnings.simplefilter("error")
from backstay.sync import Backstay

url, *names = sys.argv[1:]
stay = Backstay(url, namespace="fork").open()
held = [stay.lock(name).acquire(wait=0) for name in names]
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    try:
        lost = all(lease.is_lost for lease in held)
        own = [stay.lock(name + "-child").acquire(wait=0).fence for name in names]
        report = {"lost": lost, "own": len(own), "seen": [bool(stay.locks.inspect(name).holders) for name in names]}
    except BaseException as error:
        report = {"failed": repr(error)}
    os.write(writer, json.dumps(report).encode())
    os._exit(0)
report = json.loads(os.read(reader, 65536))
os.waitpid(child, 0)
report["released"] = [not lease.release().idempotent for lease in held]
stay.close()
print(json.dumps(report))
"""


def fork(url, names):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, url, *names], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_forked_child_finds_every_node_by_itself(quiet_cluster):
    names = list(one_on_each(quiet_cluster, prefix="fork").values())
    assert fork(quiet_cluster.url, names) == {"lost": True, "own": 3, "seen": [True] * 3, "released": [True] * 3}


def test_a_forked_child_finds_the_master_by_itself(quiet_sentinel):
    names = ["fork-1", "fork-2"]
    assert fork(quiet_sentinel.url, names) == {"lost": True, "own": 2, "seen": [True] * 2, "released": [True] * 2}
