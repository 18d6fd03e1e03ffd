"""Services: objects that exist once per Backstay, by typed key."""

from __future__ import annotations

import os

import pytest

from backstay import sync
from backstay.errors import ConfigError
from backstay.runtime.flows import run
from backstay.runtime.services import Service


@pytest.fixture
def services():
    with sync.Backstay("memory://") as stay:
        yield stay.internals.core.services


def test_a_service_is_made_at_first_use_and_once(services):
    made = []
    key = Service("list", lambda core: made.append(core) or [])
    assert services.find(key) is None
    assert services.get(key) is services.get(key)
    assert len(made) == 1
    assert services.find(key) is services.get(key)


def test_two_keys_of_one_name_are_two_services(services):
    one, other = Service("x", lambda _: 1), Service("x", lambda _: 2)
    assert (services.get(one), services.get(other)) == (1, 2)


def test_a_provided_factory_replaces_the_default_one(services):
    key = Service("x", lambda _: 1)
    services.provide(key, lambda _: 2)
    assert services.get(key) == 2


def test_a_service_without_a_maker_is_refused_until_it_is_set(services):
    key = Service("frame of mind")
    with pytest.raises(ConfigError, match="this Backstay was created without a frame of mind"):
        services.get(key)
    services.set(key, "calm")
    assert services.get(key) == "calm"
    services.discard(key)
    services.discard(key)
    assert services.find(key) is None


def test_two_backstays_can_share_a_service(services):
    key = Service("list", lambda _: [])
    with sync.Backstay("memory://") as stay:
        other = stay.internals.core.services
        other.share(services, key)
        services.get(key).append(1)
        assert other.get(key) == [1]


def test_services_are_flushed_before_any_is_closed(services):
    done = []

    async def flush(service):
        done.append(f"flush {service}")

    first = Service("first", lambda _: 1, close=lambda service: done.append(f"close {service}"))
    second = Service("second", lambda _: 2, flush=flush)
    unused = Service("unused", lambda _: 3, flush=flush)
    services.get(first)
    services.get(second)
    run(services.flush())
    services.close()
    assert done == ["flush 2", "close 1"]
    assert services.find(unused) is None


def test_a_forked_child_keeps_only_services_that_survive_a_fork(services):
    kept, dropped = Service("kept", lambda _: [], survives_fork=True), Service("dropped", lambda _: [])
    services.get(kept).append("parent")
    services.get(dropped).append("parent")
    child = os.fork()
    if child == 0:
        os._exit(0 if services.get(kept) == ["parent"] and services.get(dropped) == [] else 1)
    assert os.waitpid(child, 0)[1] == 0
