"""Fences with real processes: a holder is paused, its lease expires, and a successor writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stores import STORES

WRITER = Path(__file__).with_name("writer.py")
REDIS = pytest.param("redis", marks=pytest.mark.redis)
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture(params=["sqlite", REDIS, POSTGRES])
def target(request, tmp_path, namespace):
    """Kind of store, engine URL, namespace, and address of a store on the same kind of server."""
    if request.param == "redis":
        url = request.getfixturevalue("backstay_redis").url
        address = url.rpartition("/")[0] + "/9"
    elif request.param == "postgres":
        url = address = request.getfixturevalue("backstay_postgres").url
    else:
        url, address = f"sqlite:///{tmp_path / 'backstay.db'}", str(tmp_path / "shop.db")
    return request.param, url, namespace, address


@pytest.fixture
def store(target):
    kind, _, _, address = target
    store = STORES[kind](address)
    store.prepare()
    yield store
    store.close()


@pytest.fixture
def start(target):
    kind, url, namespace, address = target
    started = []

    def start(value, pause):
        command = [sys.executable, str(WRITER), url, namespace, kind, address, str(value), pause]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def read_words(process):
    return process.stdout.readline().split()


def wait_until_stopped(process):
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def resume(process):
    os.kill(process.pid, signal.SIGCONT)


def test_the_store_refuses_a_holder_paused_between_its_check_and_its_write(start, store):
    """Its lease check passed in time, so only the fence can stop the late write."""
    late = start(1, "before-write")
    _, old = read_words(late)
    wait_until_stopped(late)
    successor = start(2, "never")
    _, new = read_words(successor)
    assert read_words(successor) == ["written"]
    resume(late)
    assert read_words(late) == ["stale", old, new]
    assert int(old) < int(new)
    assert store.read() == 2


def test_a_holder_paused_before_its_check_gets_lease_lost(start, store):
    late = start(1, "before-check")
    _, old = read_words(late)
    wait_until_stopped(late)
    successor = start(2, "never")
    read_words(successor)
    assert read_words(successor) == ["written"]
    resume(late)
    assert read_words(late) == ["lost", old]
    assert store.read() == 2


def test_a_paused_holder_without_a_successor_may_still_write(start, store):
    """The lock had no other holder meanwhile, so the fence is still the newest."""
    late = start(1, "before-write")
    read_words(late)
    wait_until_stopped(late)
    resume(late)
    assert read_words(late) == ["written"]
    assert store.read() == 1
