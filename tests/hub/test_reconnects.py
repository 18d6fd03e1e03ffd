"""After a server restart or a cut connection, a hub reconnects within two seconds and reports one gap."""

from __future__ import annotations

import asyncio

import pytest

from backstay import Backstay
from backstay.engine.base import steady
from backstay.hub.base import Hub
from backstay.testing.conformance.gate.cases import NAME
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import WITHIN, eventually

pytestmark = [pytest.mark.redis, pytest.mark.chaos]
BACK_WITHIN = 2.0


def wait_until_received(messages, publish_back):
    """Publish until a message arrives; return the seconds it took and the number of gaps."""
    began = steady()
    gaps = 0
    while True:
        publish_back()
        while (message := messages.next(timeout=0.05)) is not None:
            if not message.missed:
                return steady() - began, gaps
            gaps += 1
        assert steady() - began < 20, "no message arrived"


@pytest.mark.timed
@pytest.mark.parametrize("engine", ["redis", "sqlite"])
def test_messages_arrive_within_two_seconds_after_a_server_restart(engine, connect, tmp_path):
    with RedisServer() as server:
        options = {"hub": server.url} if engine == "sqlite" else {}
        stay = connect(f"sqlite:///{tmp_path / 's.db'}" if engine == "sqlite" else server.url, **options)
        publisher = connect(server.url)
        with stay.hub.listen("news") as messages:
            server.restart()

            def publish_back():
                try:
                    publisher.hub.publish("news", "back")
                except Exception:  # noqa: BLE001 - the publisher's connection was cut, too
                    return

            took, gaps = wait_until_received(messages, publish_back)
            assert gaps == 1
            assert took < BACK_WITHIN
            assert stay.telemetry.counts["hub.reconnected"] == 1
            assert stay.telemetry.counts["hub.interrupted"] == 1


@pytest.mark.timed
@pytest.mark.parametrize("times", [1, 3])
def test_a_cut_connection_is_replaced_and_reported_as_one_gap(times, connect, backstay_redis, tmp_path):
    publisher = connect(backstay_redis.url)
    with FaultProxy(backstay_redis.port) as proxy:
        stay = connect(f"sqlite:///{tmp_path / 's.db'}", hub=proxy.url)
        with stay.hub.listen("news") as messages, stay.hub.listen("news") as others:
            for nth in range(times):
                proxy.cut_all()
                assert eventually(lambda nth=nth: stay.telemetry.counts["hub.interrupted"] == nth + 1)
                took, gaps = wait_until_received(messages, lambda: publisher.hub.publish("news", "back"))
                assert gaps == 1
                assert took < BACK_WITHIN
                assert wait_until_received(others, lambda: None)[1] == 1


@pytest.mark.timed
def test_a_cut_connection_is_replaced_in_the_async_api(backstay_redis, namespace, tmp_path):
    with FaultProxy(backstay_redis.port) as proxy:

        async def main():
            async with (
                Backstay(f"sqlite:///{tmp_path / 's.db'}", namespace=namespace, hub=proxy.url) as stay,
                Backstay(backstay_redis.url, namespace=namespace) as publisher,
                stay.hub.listen_scheduled(["resize"]) as jobs,
            ):
                await asyncio.to_thread(proxy.cut_all)
                began = steady()
                notice = await jobs.next(timeout=WITHIN)
                assert notice is not None
                assert notice.missed
                assert await stay.hub.take_hint(notice.hint_id, 4) == 4
                hint = await publisher.hub.publish_scheduled("resize")
                notice = await jobs.next(timeout=WITHIN)
                assert notice is not None
                assert notice.hint_id == hint
                assert steady() - began < BACK_WITHIN

        asyncio.run(main())


def test_reconnects_to_a_server_that_disconnects_at_once_are_rate_limited(backstay_redis, connect, tmp_path):
    with FaultProxy(backstay_redis.port) as proxy:
        stay = connect(f"sqlite:///{tmp_path / 's.db'}", hub=proxy.url)
        with stay.hub.listen("news") as messages:
            cut = proxy.rule("cut-after", b"$9\r\nSUBSCRIBE")
            proxy.cut_all()
            assert eventually(lambda: proxy.applied["cut-after"] >= 3)
            began, before = steady(), proxy.applied["cut-after"]
            assert eventually(lambda: proxy.applied["cut-after"] >= before + 3)
            assert steady() - began > 0.1, "three attempts take their pauses"
            cut.times = 0
            assert wait_until_received(messages, lambda: stay.hub.publish("news", "x"))[1] == 1


class LossyHub(Hub):
    """A hub that loses every message."""

    def _open(self, channel):
        self._multiplexers[channel].on_opened()

    def _close(self, channel):
        self._multiplexers[channel].on_closed()

    def close(self):
        pass

    def after_fork(self):
        self._reset()


def test_a_hub_that_loses_every_message_only_slows_waiters(shared_url, namespace):
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
            Backstay(shared_url, hub=LossyHub(), **options) as one,
            Backstay(shared_url, hub=LossyHub(), **options) as two,
        ):
            async with asyncio.timeout(60):
                await asyncio.gather(*[work(stay) for stay in (one, two) for _ in range(3)])
        assert (most, len(order)) == (1, 6)

    asyncio.run(main())


def test_a_take_whose_reply_is_lost_counts_as_allowed(backstay_redis, connect, tmp_path):
    """A take counts, so it is not resent; a caller without a reply looks for jobs anyway."""
    publisher = connect(backstay_redis.url)
    with FaultProxy(backstay_redis.port) as proxy:
        stay = connect(f"sqlite:///{tmp_path / 's.db'}", hub=proxy.url)
        hint = publisher.hub.publish_scheduled("resize", 2)
        assert stay.hub.take_hint(hint) == 1
        lost = proxy.once("cut-after", hint.encode())
        assert stay.hub.take_hint(hint, 3) == 3
        assert lost.applied.is_set()
        assert stay.telemetry.counts["hub.hint_unknown"] == 1
        assert publisher.hub.take_hint(hint) == 0, "it was taken once, not twice"
        proxy.refuse()
        assert stay.hub.take_hint(hint, 3) == 3


def test_a_publish_whose_reply_is_lost_raises_and_is_not_resent(backstay_redis, connect, tmp_path):
    from backstay import EngineUnavailable, OutcomeUnknown

    publisher = connect(backstay_redis.url)
    with FaultProxy(backstay_redis.port) as proxy, publisher.hub.listen("news") as messages:
        stay = connect(f"sqlite:///{tmp_path / 's.db'}", hub=proxy.url)
        stay.hub.publish("news", "first")
        proxy.once("cut-after", b"PUBLISH")
        with pytest.raises(OutcomeUnknown):
            stay.hub.publish("news", "doubtful")
        stay.hub.publish("news", "last")
        received = [messages.next(timeout=WITHIN) for _ in range(3)]
        assert [m.payload for m in received if m] == ["first", "doubtful", "last"]
        proxy.refuse()
        with pytest.raises((EngineUnavailable, OutcomeUnknown)):
            stay.hub.publish("news", "no listener")
