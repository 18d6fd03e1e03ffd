"""A hub whose server dies or whose connection is cut: heard again within two seconds, and told of it once."""

from __future__ import annotations

import asyncio

import pytest

from backstay import Backstay
from backstay.engine.base import steady
from backstay.hub.base import Hub
from backstay.testing.conformance.gate.scenes import NAME
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import WITHIN, eventually

pytestmark = [pytest.mark.redis, pytest.mark.chaos]
BACK_WITHIN = 2.0


def heard_again(messages, say):
    """Speak until it is heard; answers how long that took, and how often the listener was told of a gap."""
    began = steady()
    told = 0
    while True:
        say()
        while (message := messages.next(timeout=0.05)) is not None:
            if not message.missed:
                return steady() - began, told
            told += 1
        assert steady() - began < 20, "never heard again"


@pytest.mark.timed
@pytest.mark.parametrize("engine", ["redis", "sqlite"])
def test_a_killed_server_is_heard_again_soon_after_it_returns(engine, connect, tmp_path):
    with RedisServer() as server:
        options = {"hub": server.url} if engine == "sqlite" else {}
        stay = connect(f"sqlite:///{tmp_path / 's.db'}" if engine == "sqlite" else server.url, **options)
        speaker = connect(server.url)
        with stay.hub.listen("news") as messages:
            server.restart()

            def say():
                try:
                    speaker.hub.publish("news", "back")
                except Exception:  # noqa: BLE001 - its own connection was cut, too
                    return

            took, told = heard_again(messages, say)
            assert told == 1
            assert took < BACK_WITHIN
            assert stay.telemetry.counts["hub.reconnected"] == 1
            assert stay.telemetry.counts["hub.interrupted"] == 1


@pytest.mark.timed
@pytest.mark.parametrize("times", [1, 3])
def test_a_cut_connection_is_replaced_and_told_of_once(times, connect, backstay_redis, tmp_path):
    speaker = connect(backstay_redis.url)
    with FaultProxy(backstay_redis.port) as proxy:
        stay = connect(f"sqlite:///{tmp_path / 's.db'}", hub=proxy.url)
        with stay.hub.listen("news") as messages, stay.hub.listen("news") as others:
            for nth in range(times):
                proxy.cut_all()
                assert eventually(lambda nth=nth: stay.telemetry.counts["hub.interrupted"] == nth + 1)
                took, told = heard_again(messages, lambda: speaker.hub.publish("news", "back"))
                assert told == 1
                assert took < BACK_WITHIN
                assert heard_again(others, lambda: None)[1] == 1


@pytest.mark.timed
def test_a_cut_connection_is_replaced_in_the_async_api(backstay_redis, namespace, tmp_path):
    with FaultProxy(backstay_redis.port) as proxy:

        async def main():
            async with (
                Backstay(f"sqlite:///{tmp_path / 's.db'}", namespace=namespace, hub=proxy.url) as stay,
                Backstay(backstay_redis.url, namespace=namespace) as speaker,
                stay.hub.listen_scheduled(["resize"]) as jobs,
            ):
                await asyncio.to_thread(proxy.cut_all)
                began = steady()
                notice = await jobs.next(timeout=WITHIN)
                assert notice is not None
                assert notice.missed
                assert await stay.hub.take_hint(notice.hint_id, 4) == 4
                hint = await speaker.hub.publish_scheduled("resize")
                notice = await jobs.next(timeout=WITHIN)
                assert notice is not None
                assert notice.hint_id == hint
                assert steady() - began < BACK_WITHIN

        asyncio.run(main())


def test_a_server_that_hangs_up_at_once_is_not_hammered(backstay_redis, connect, tmp_path):
    with FaultProxy(backstay_redis.port) as proxy:
        stay = connect(f"sqlite:///{tmp_path / 's.db'}", hub=proxy.url)
        with stay.hub.listen("news") as messages:
            cut = proxy.rule("cut-after", b"$9\r\nSUBSCRIBE")
            proxy.cut_all()
            assert eventually(lambda: proxy.struck["cut-after"] >= 3)
            began, before = steady(), proxy.struck["cut-after"]
            assert eventually(lambda: proxy.struck["cut-after"] >= before + 3)
            assert steady() - began > 0.1, "three attempts take their pauses"
            cut.times = 0
            assert heard_again(messages, lambda: stay.hub.publish("news", "x"))[1] == 1


class Deaf(Hub):
    """Loses every message."""

    def _open(self, channel):
        self._listeners[channel].opened()

    def _close(self, channel):
        self._listeners[channel].closed()

    def close(self):
        pass

    def after_fork(self):
        self._reset()


def test_a_hub_that_loses_everything_makes_waiting_slower_never_wrong(shared_url, namespace):
    async def main():
        inside, most, order = 0, 0, []

        async def work(stay):
            nonlocal inside, most
            async with stay.lock(NAME, ttl=5):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                order.append(1)
                inside -= 1

        options = {"namespace": namespace}
        async with (
            Backstay(shared_url, hub=Deaf(), **options) as one,
            Backstay(shared_url, hub=Deaf(), **options) as two,
        ):
            async with asyncio.timeout(60):
                await asyncio.gather(*[work(stay) for stay in (one, two) for _ in range(3)])
        assert (most, len(order)) == (1, 6)

    asyncio.run(main())


def test_a_take_whose_answer_is_lost_lets_its_caller_come(backstay_redis, connect, tmp_path):
    """Counting: it is not sent again, and whoever cannot be told looks for itself."""
    speaker = connect(backstay_redis.url)
    with FaultProxy(backstay_redis.port) as proxy:
        stay = connect(f"sqlite:///{tmp_path / 's.db'}", hub=proxy.url)
        hint = speaker.hub.publish_scheduled("resize", 2)
        assert stay.hub.take_hint(hint) == 1
        lost = proxy.once("cut-after", hint.encode())
        assert stay.hub.take_hint(hint, 3) == 3
        assert lost.struck.is_set()
        assert stay.telemetry.counts["hub.hint_unknown"] == 1
        assert speaker.hub.take_hint(hint) == 0, "it was taken once, not twice"
        proxy.refuse()
        assert stay.hub.take_hint(hint, 3) == 3


def test_a_publish_whose_answer_is_lost_says_so_and_is_not_repeated(backstay_redis, connect, tmp_path):
    from backstay import EngineUnavailable, OutcomeUnknown

    speaker = connect(backstay_redis.url)
    with FaultProxy(backstay_redis.port) as proxy, speaker.hub.listen("news") as messages:
        stay = connect(f"sqlite:///{tmp_path / 's.db'}", hub=proxy.url)
        stay.hub.publish("news", "first")
        proxy.once("cut-after", b"PUBLISH")
        with pytest.raises(OutcomeUnknown):
            stay.hub.publish("news", "doubtful")
        stay.hub.publish("news", "last")
        heard = [messages.next(timeout=WITHIN) for _ in range(3)]
        assert [m.payload for m in heard if m] == ["first", "doubtful", "last"]
        proxy.refuse()
        with pytest.raises((EngineUnavailable, OutcomeUnknown)):
            stay.hub.publish("news", "nobody there")
