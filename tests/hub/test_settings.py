"""`hub=`, `hub_prefix=` and BACKSTAY_HUB: what carries the hints, and under which names."""

from __future__ import annotations

import asyncio
import os

import pytest
import redis
import redis.asyncio

from backstay import Backstay, ConfigError, sync
from backstay.hub.base import Hub
from backstay.hub.local import LocalHub
from backstay.hub.redis import RedisHub
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import WITHIN


def hears_itself(stay):
    with stay.hub.listen("news") as messages:
        stay.hub.publish("news", "x")
        message = messages.next(timeout=WITHIN)
        return message is not None and message.payload == "x"


@pytest.mark.redis
def test_the_environment_names_the_hub(connect, backstay_redis, monkeypatch):
    monkeypatch.setenv("BACKSTAY_HUB", backstay_redis.url)
    stay = connect("memory://")
    assert isinstance(stay._core.hub, RedisHub)
    assert hears_itself(stay)


@pytest.mark.redis
def test_an_argument_goes_before_the_environment(connect, backstay_redis, monkeypatch):
    monkeypatch.setenv("BACKSTAY_HUB", "nonsense")
    assert hears_itself(connect("memory://", hub=backstay_redis.url))


@pytest.mark.redis
@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_a_redis_py_client_names_the_hub(kind, connect, backstay_redis):
    client = kind(host="127.0.0.1", port=backstay_redis.port)
    assert hears_itself(connect("memory://", hub=client))


@pytest.mark.redis
def test_a_clients_password_and_database_are_taken_over(connect, namespace):
    with RedisServer(options=("--requirepass", "secret")) as server:
        client = redis.Redis(port=server.port, password="secret", db=3)
        stay = connect("memory://", hub=client)
        hint = stay.hub.publish_scheduled("resize")
        assert client.get(f"{namespace}:hint:{hint}") == b"1"
        client.close()


def test_a_hub_object_is_used_as_it_is_and_not_closed(namespace):
    carrier = sync.Backstay("memory://", namespace=namespace)
    hub = LocalHub(carrier.engine, inbox="shared", carrier=carrier.engine)
    try:
        with (
            sync.Backstay("memory://", namespace=namespace, hub=hub) as one,
            sync.Backstay("memory://", namespace=namespace, hub=hub) as two,
        ):
            with one.hub.listen("news") as messages:
                two.hub.publish("news", "x")
                message = messages.next(timeout=WITHIN)
                assert message is not None
            one.close()
            assert hears_itself(two)
    finally:
        hub.close()
        carrier.close()


def test_another_file_may_carry_the_hints(connect, tmp_path):
    files = [f"sqlite:///{tmp_path / name}" for name in ("state.db", "hints.db")]
    one, two = (connect(files[0], hub=files[1]) for _ in range(2))
    with one.hub.listen_scheduled() as jobs:
        hint = two.hub.publish_scheduled("resize")
        notice = jobs.next(timeout=WITHIN)
        assert notice is not None
        assert notice.hint_id == hint
        assert [stay.hub.take_hint(hint) for stay in (one, two)] == [1, 0]


def test_an_engine_that_wakes_by_itself_takes_no_other_hub(connect):
    with pytest.raises(ConfigError, match="by itself"):
        connect("redis://127.0.0.1:1/0", hub="redis://127.0.0.1:2/0")


@pytest.mark.redis
def test_an_engines_own_url_is_the_hub_it_has_anyway(connect, backstay_redis):
    assert hears_itself(connect(backstay_redis.url, hub=backstay_redis.url))


@pytest.mark.parametrize("hub", [7, b"redis://", object(), "nonsense", "http://127.0.0.1"])
def test_what_is_no_hub_is_refused(hub, connect):
    with pytest.raises(ConfigError):
        connect("memory://", hub=hub)


@pytest.mark.parametrize("prefix", ["", "a{b}", "x" * 513, "a\nb"])
def test_a_prefix_that_cannot_work_is_refused(prefix, connect):
    with pytest.raises(ConfigError, match="hub_prefix"):
        connect("memory://", hub_prefix=prefix)


def test_passwords_of_hubs_do_not_show(connect):
    stay = connect("memory://", hub="redis://user:hunter2@127.0.0.1:1/0?connect_timeout=0.1")
    with pytest.raises(Exception, match="cannot reach") as caught:
        stay.hub.publish("news", "x")
    assert "hunter2" not in str(caught.value)


@pytest.mark.redis
def test_a_blocking_function_of_an_async_backstay_uses_the_same_hub(namespace, backstay_redis, tmp_path):
    async def main():
        url = f"sqlite:///{tmp_path / 'state.db'}"
        async with Backstay(url, namespace=namespace, hub=backstay_redis.url) as stay:

            @stay.locked("report")
            def report():
                return type(stay._blocking()._core.hub)

            async with stay.lock("report"):
                waiting = asyncio.create_task(asyncio.to_thread(report))
                await asyncio.sleep(0)
            assert await asyncio.wait_for(waiting, WITHIN) is RedisHub

    asyncio.run(main())


@pytest.mark.redis
def test_a_forked_child_has_a_hub_of_its_own(connect, backstay_redis, tmp_path):
    stay = connect(f"sqlite:///{tmp_path / 'state.db'}", hub=backstay_redis.url)
    assert hears_itself(stay)
    with stay.hub.listen("from the child") as messages:
        pid = os.fork()
        if pid == 0:  # pragma: no cover - another process
            code = 1
            try:
                with stay.hub.listen("news") as own:
                    stay.hub.publish("news", "x")
                    heard = own.next(timeout=WITHIN) is not None
                stay.hub.publish("from the child", "hello")
                code = 0 if heard else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        message = messages.next(timeout=WITHIN)
        assert message is not None
        assert message.payload == "hello"
        stay.hub.publish("from the child", "and the parent")
        message = messages.next(timeout=WITHIN)
        assert message is not None


def test_a_hub_needs_its_transport():
    with pytest.raises(TypeError, match="abstract"):
        Hub()
