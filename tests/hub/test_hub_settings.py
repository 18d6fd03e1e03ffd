"""`hub=`, `hub_prefix=` and BACKSTAY_HUB: the choice of the hub and of its channel prefix."""

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


def receives_its_own_message(stay):
    with stay.hub.listen("news") as messages:
        stay.hub.publish("news", "x")
        message = messages.next(timeout=WITHIN)
        return message is not None and message.payload == "x"


@pytest.mark.redis
def test_the_environment_names_the_hub(connect, backstay_redis, monkeypatch):
    monkeypatch.setenv("BACKSTAY_HUB", backstay_redis.url)
    stay = connect("memory://")
    assert isinstance(stay._core.hub, RedisHub)
    assert receives_its_own_message(stay)


@pytest.mark.redis
def test_the_hub_argument_overrides_the_environment(connect, backstay_redis, monkeypatch):
    monkeypatch.setenv("BACKSTAY_HUB", "nonsense")
    assert receives_its_own_message(connect("memory://", hub=backstay_redis.url))


@pytest.mark.redis
@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_a_redis_py_client_names_the_hub(kind, connect, backstay_redis):
    client = kind(host="127.0.0.1", port=backstay_redis.port)
    assert receives_its_own_message(connect("memory://", hub=client))


@pytest.mark.redis
def test_a_clients_password_and_database_are_used_for_the_hub(connect, namespace):
    with RedisServer(options=("--requirepass", "secret")) as server:
        client = redis.Redis(port=server.port, password="secret", db=3)
        stay = connect("memory://", hub=client)
        hint = stay.hub.publish_scheduled("resize")
        assert client.get(f"{namespace}:hint:{hint}") == b"1"
        client.close()


def test_a_hub_object_is_used_unchanged_and_not_closed(namespace):
    runner = sync.Backstay("memory://", namespace=namespace)
    hub = LocalHub(runner.engine, inbox="shared", runner=runner.engine)
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
            assert receives_its_own_message(two)
    finally:
        hub.close()
        runner.close()


def test_another_sqlite_file_may_be_the_hub(connect, tmp_path):
    files = [f"sqlite:///{tmp_path / name}" for name in ("state.db", "hints.db")]
    one, two = (connect(files[0], hub=files[1]) for _ in range(2))
    with one.hub.listen_scheduled() as jobs:
        hint = two.hub.publish_scheduled("resize")
        notice = jobs.next(timeout=WITHIN)
        assert notice is not None
        assert notice.hint_id == hint
        assert [stay.hub.take_hint(hint) for stay in (one, two)] == [1, 0]


def test_an_engine_with_its_own_hub_refuses_another_hub(connect):
    with pytest.raises(ConfigError, match="itself"):
        connect("redis://127.0.0.1:1/0", hub="redis://127.0.0.1:2/0")


@pytest.mark.redis
def test_the_engines_own_url_is_accepted_as_its_hub(connect, backstay_redis):
    assert receives_its_own_message(connect(backstay_redis.url, hub=backstay_redis.url))


@pytest.mark.parametrize("hub", [7, b"redis://", object(), "nonsense", "http://127.0.0.1"])
def test_an_invalid_hub_is_refused(hub, connect):
    with pytest.raises(ConfigError):
        connect("memory://", hub=hub)


@pytest.mark.parametrize("prefix", ["", "a{b}", "x" * 513, "a\nb"])
def test_an_invalid_hub_prefix_is_refused(prefix, connect):
    with pytest.raises(ConfigError, match="hub_prefix"):
        connect("memory://", hub_prefix=prefix)


def test_errors_do_not_show_the_hub_password(connect):
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
def test_a_forked_child_opens_its_own_hub(connect, backstay_redis, tmp_path):
    stay = connect(f"sqlite:///{tmp_path / 'state.db'}", hub=backstay_redis.url)
    assert receives_its_own_message(stay)
    with stay.hub.listen("from the child") as messages:
        pid = os.fork()
        if pid == 0:  # pragma: no cover - another process
            code = 1
            try:
                with stay.hub.listen("news") as own:
                    stay.hub.publish("news", "x")
                    received = own.next(timeout=WITHIN) is not None
                stay.hub.publish("from the child", "hello")
                code = 0 if received else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        message = messages.next(timeout=WITHIN)
        assert message is not None
        assert message.payload == "hello"
        stay.hub.publish("from the child", "and the parent")
        message = messages.next(timeout=WITHIN)
        assert message is not None


def test_a_hub_without_a_transport_cannot_be_created():
    with pytest.raises(TypeError, match="abstract"):
        Hub()
