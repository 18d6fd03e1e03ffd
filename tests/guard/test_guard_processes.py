"""The reason for fences, with real processes: a holder stands still, its lease runs out, another goes on."""

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
def scene(request, tmp_path, namespace):
    """An engine's URL with a namespace, and a store on the same kind of server."""
    if request.param == "redis":
        url = request.getfixturevalue("backstay_redis").url
        address = url.rpartition("/")[0] + "/9"
    elif request.param == "postgres":
        url = address = request.getfixturevalue("backstay_postgres").url
    else:
        url, address = f"sqlite:///{tmp_path / 'backstay.db'}", str(tmp_path / "shop.db")
    return request.param, url, namespace, address


@pytest.fixture
def store(scene):
    kind, _, _, address = scene
    store = STORES[kind](address)
    store.prepare()
    yield store
    store.close()


@pytest.fixture
def start(scene):
    kind, url, namespace, address = scene
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


def said(process):
    return process.stdout.readline().split()


def stand_still(process):
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def go_on(process):
    os.kill(process.pid, signal.SIGCONT)


def test_a_holder_that_stood_still_before_its_write_is_refused_by_the_store(start, store):
    """Its own look at the lease was in time, so only the fence can stop it."""
    late = start(1, "before-write")
    _, old = said(late)
    stand_still(late)
    successor = start(2, "never")
    _, new = said(successor)
    assert said(successor) == ["written"]
    go_on(late)
    assert said(late) == ["stale", old, new]
    assert int(old) < int(new)
    assert store.read() == 2


def test_a_holder_that_stood_still_before_its_check_hears_that_its_lease_is_lost(start, store):
    late = start(1, "before-check")
    _, old = said(late)
    stand_still(late)
    successor = start(2, "never")
    said(successor)
    assert said(successor) == ["written"]
    go_on(late)
    assert said(late) == ["lost", old]
    assert store.read() == 2


def test_a_holder_that_stood_still_alone_may_write_after_all(start, store):
    """Nobody has held the lock since, so nothing is overtaken."""
    late = start(1, "before-write")
    said(late)
    stand_still(late)
    go_on(late)
    assert said(late) == ["written"]
    assert store.read() == 1
