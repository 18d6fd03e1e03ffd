"""Servers for tests of TLS, Sentinel and Cluster, and a fixture that runs a test on both APIs."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

import backstay
import backstay.sync
from backstay.testing.plugin import start_or_skip
from backstay.testing.servers import RedisCluster, RedisSentinel, RedisServer
from backstay.testing.servers.certificates import Certificates
from support.servers import running


def blocking_take(url, name="x", **options):
    with backstay.sync.Backstay(url, **options) as stay, stay.lock(name, wait=0) as lease:
        return lease.fence


def async_take(url, name="x", **options):
    async def take():
        async with backstay.Backstay(url, **options) as stay, stay.lock(name, wait=0) as lease:
            return lease.fence

    return asyncio.run(take())


@pytest.fixture(params=[async_take, blocking_take], ids=["async", "blocking"])
def take(request):
    """`take(url, name)` opens a Backstay on either API, acquires and releases a lock, and returns its fence."""
    return request.param


@pytest.fixture(scope="session")
def certificates():
    if not Certificates.available():
        pytest.skip("openssl is not installed")
    with Certificates() as made:
        yield made


@pytest.fixture(scope="session")
def tls_redis(certificates):
    with running(RedisServer(tls=certificates)) as server:
        yield server


@pytest.fixture(scope="session")
def quiet_sentinel():
    """A master, its replicas and Sentinels, shared by all tests, which must not kill them."""
    with running(RedisSentinel(down_after=5)) as group:
        yield group


@pytest.fixture(scope="session")
def quiet_cluster():
    """Three masters with a replica each, shared by all tests, which must not kill them."""
    with running(RedisCluster(node_timeout=5)) as group:
        yield group


@pytest.fixture
def cluster():
    """Three masters with a replica each for one test, which may kill them."""
    with running(RedisCluster()) as group:
        yield group


SHIFTED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
  int result = real(tv, tz);
  const char *shift = getenv("SHIFT_SECONDS");
  if (shift) tv->tv_sec += atol(shift);
  return result;
}
"""


@pytest.fixture
def clocks_apart(tmp_path):
    """A Cluster whose clocks differ by more than the lifetime of a command: one is 100 s behind, one 100 s ahead."""
    (tmp_path / "shift.c").write_text(SHIFTED)
    made = subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", tmp_path / "shift.so", tmp_path / "shift.c", "-ldl"], check=False
    )
    if made.returncode:
        pytest.skip("gcc is not installed")
    group = RedisCluster(replicas=0, node_timeout=15)
    for node, shift in zip(group.nodes, (-100, 0, 100), strict=True):
        node.env = {"LD_PRELOAD": str(tmp_path / "shift.so"), "SHIFT_SECONDS": str(shift)}
    try:
        yield start_or_skip(group)
    finally:
        group.stop()
