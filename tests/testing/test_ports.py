"""Ports for test servers: no two processes get the same one."""

from __future__ import annotations

import subprocess
import sys

from backstay.testing.servers.ports import reserve_port, reserve_port_pair

ASK = """
import sys
from backstay.testing.servers.ports import reserve_port, reserve_port_pair
print(*[reserve_port() for _ in range(400)], *[reserve_port_pair() for _ in range(100)], flush=True)
sys.stdin.read()
"""


def test_concurrent_processes_never_get_the_same_port():
    asking = [
        subprocess.Popen([sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)
    ]
    given = [int(port) for one in asking for port in one.stdout.readline().split()]
    given += [reserve_port(), reserve_port_pair()]
    assert len(given) == len(set(given)) == 4 * 500 + 2
    for one in asking:
        one.communicate()
