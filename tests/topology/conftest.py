"""Servers for tests of TLS, Sentinel and Cluster, and the two APIs behind one word."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

import backstay
import backstay.sync
from backstay.testing.plugin import started_or_skip
from backstay.testing.servers import RedisCluster, RedisSentinel, RedisServer
from backstay.testing.servers.certificates import Certificates


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
    """Open a Backstay, take a lock and give it back; answers its fence."""
    return request.param


@pytest.fixture(scope="session")
def certificates():
    if not Certificates.available():
        pytest.skip("openssl is not installed")
    with Certificates() as made:
        yield made


@pytest.fixture(scope="session")
def tls_redis(certificates):
    server = RedisServer(tls=certificates)
    try:
        yield started_or_skip(server)
    finally:
        server.stop()


@pytest.fixture(scope="session")
def quiet_sentinel():
    """A master, its replicas and Sentinels, shared by all tests and never killed."""
    group = RedisSentinel(down_after=5)
    try:
        yield started_or_skip(group)
    finally:
        group.stop()


@pytest.fixture(scope="session")
def quiet_cluster():
    """Three masters with a replica each, shared by all tests and never killed."""
    group = RedisCluster(node_timeout=5)
    try:
        yield started_or_skip(group)
    finally:
        group.stop()


@pytest.fixture
def cluster():
    """The same of one test's own: its nodes are going to be killed."""
    group = RedisCluster()
    try:
        yield started_or_skip(group)
    finally:
        group.stop()


SHIFTED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
  int said = real(tv, tz);
  const char *shift = getenv("SHIFT_SECONDS");
  if (shift) tv->tv_sec += atol(shift);
  return said;
}
"""


@pytest.fixture
def clocks_apart(tmp_path):
    """A Cluster whose nodes differ by far more than a command may live: one in the past, one in the future."""
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
        yield started_or_skip(group)
    finally:
        group.stop()
