"""Slots for streams and long polls: one caller cannot take them from all others."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from backstay.job.flows import send
from backstay.server.http.auth import new_token
from backstay.server.http.problem import Refusal
from backstay.server.http.waiting import WaitingSlots
from backstay.server.settings import ServerSettings
from backstay.testing.waiting import eventually
from support.server.site import serving


def on_loop(function):
    async def run():
        return function()

    return asyncio.run(run())


def test_one_caller_may_use_all_free_slots():
    def run():
        slots = WaitingSlots(3)
        taken = [slots.take("a") for _ in range(3)]
        assert slots.count == 3
        with pytest.raises(Refusal) as caught:
            slots.take("a")
        assert caught.value.status == 503
        for slot in taken:
            slots.free(slot)
            slots.free(slot)
        assert slots.count == 0

    on_loop(run)


def test_a_second_caller_takes_slots_until_both_have_as_many():
    def run():
        slots = WaitingSlots(6)
        greedy = [slots.take("a") for _ in range(6)]
        taken = [slots.take("b") for _ in range(3)]
        assert slots.count == 6
        assert [slot.revoked.done() for slot in greedy] == [False] * 3 + [True] * 3, "the newest ones end"
        for caller in "ab":
            with pytest.raises(Refusal):
                slots.take(caller)
        assert not any(slot.revoked.done() for slot in taken)
        slots.take("c")
        assert slots.count == 6

    on_loop(run)


@pytest.fixture
def crowded(tmp_path):
    """A server with four slots and two tokens, one of which uses all slots for streams."""
    (greedy, first), (modest, second) = new_token("admin"), new_token("submit")

    async def prepare(server):
        await server.stay.open()
        for record in (first, second):
            await send(server.core, server.store.put_token(record))

    settings = ServerSettings(access_log=False, max_waiting=4)
    url = f"sqlite:///{tmp_path / 'backstay.db'}?synchronous=normal"
    with serving(url, prepare=prepare, settings=settings) as site, ThreadPoolExecutor(8) as threads:
        headers = [{"authorization": f"Bearer {token}"} for token in (greedy, modest)]

        def stream():
            received = b""
            with site.http.stream("GET", "/api/events", headers=headers[0]) as response:
                for piece in response.iter_raw():
                    received += piece
            return received

        with contextlib.ExitStack() as cleanup:
            cleanup.callback(site.loop.call_soon_threadsafe, site.server.begin_close)
            streams = [threads.submit(stream) for _ in range(4)]
            assert eventually(lambda: site.server.waiting == 4)
            yield site, *headers, streams


def test_acquiring_a_free_lock_needs_no_slot(crowded):
    site, greedy, modest, _ = crowded
    for headers in (greedy, modest):
        name = headers["authorization"][-4:]
        assert site.post(f"/api/locks/{name}/acquire", headers=headers).status_code == 200
        assert site.post(f"/api/idempotency/{name}/begin", {"wait_seconds": 5}, headers=headers).status_code == 200
    assert site.server.waiting == 4


def test_a_caller_with_all_slots_gets_no_more_and_another_caller_gets_one(crowded):
    site, greedy, modest, streams = crowded
    claim = {"worker_id": "w", "queues": ["none"], "wait_secs": 0.5}
    assert site.get("/api/events", headers=greedy).status_code == 503
    assert site.post("/api/jobs/claim", claim, headers=greedy).status_code == 503
    assert not any(stream.done() for stream in streams)
    site.post("/api/locks/busy/acquire", {"lock_id": "holder"}, headers=greedy)
    wait = {"max_wait_seconds": 0.3, "poll_seconds": 0.3}
    assert site.post("/api/locks/busy/acquire", wait, headers=modest).status_code == 409
    assert eventually(lambda: sum(stream.done() for stream in streams) == 1)
    (ended,) = [stream.result() for stream in streams if stream.done()]
    assert ended.endswith(b"other callers needed this stream's place; reconnect later\n\n")
