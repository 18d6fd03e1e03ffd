"""Logs and outputs of jobs: log lines are stored in order, once each. Only the current lease may write."""

from __future__ import annotations

import msgspec

from backstay.job.model import LogLine
from backstay.testing.conformance.job.bench import Bench, store_test


class JobOutputTests:
    """Tests of `append_log`, `read_log`, `put_outputs` and `get_outputs`."""

    @store_test
    async def test_log_lines_are_read_in_order_and_in_pages(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        lines = [(bench.now + nth, "stdout" if nth % 2 else "stderr", f"line {nth} é\n\x00") for nth in range(25)]
        assert await one.call("append_log", id_, job.fence, lines[:10], 1) is True
        assert await one.call("append_log", id_, job.fence, lines[10:], 11) is True
        log = [LogLine(nth, *line) for nth, line in enumerate(lines, 1)]
        assert await other.call("read_log", id_) == log
        assert await other.call("read_log", id_, 20) == log[20:]
        assert await other.call("read_log", id_, 3, 4) == log[3:7]
        assert await other.call("read_log", id_, 25) == []

    @store_test
    async def test_sending_lines_twice_writes_them_once(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add()
        job = await one.take()
        lines = [(bench.now, "stdout", word) for word in ("a", "b", "c")]
        assert await one.call("append_log", id_, job.fence, lines[:2], 1) is True
        assert await one.call("append_log", id_, job.fence, lines, 1) is True
        assert await one.call("append_log", id_, job.fence, [(bench.now, "stdout", "other")], 2) is True
        assert [line.data for line in await one.call("read_log", id_)] == ["a", "b", "c"]

    @store_test
    async def test_only_the_current_lease_writes_lines(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=1)
        line = [(bench.now, "stdout", "x")]
        assert await one.call("append_log", id_, 5, line, 1) is False
        old = await one.take()
        await one.finish(old, "release")
        new = await other.take()
        assert await one.call("append_log", id_, old.fence, line, 1) is False
        assert await other.call("append_log", id_, new.fence, line, 1) is True
        await other.finish(new)
        assert await other.call("append_log", id_, new.fence, line, 2) is False
        assert len(await one.call("read_log", id_)) == 1

    @store_test
    async def test_without_a_fence_any_caller_may_append_log_lines(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add()
        assert await one.call("append_log", id_, 0, [(bench.now, "system", "queued")], 1) is True
        assert [line.data for line in await one.call("read_log", id_)] == ["queued"]
        assert await one.call("append_log", bench.job().id, 0, [(bench.now, "system", "unknown")], 1) is False

    @store_test
    async def test_a_log_outlives_attempts_and_the_end(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add(retries=1)
        for attempt in (1, 2):
            job = await one.take()
            await one.call("append_log", id_, job.fence, [(bench.now, "stdout", f"try {attempt}")], attempt)
            await one.finish(job, "retry" if attempt == 1 else "complete")
        assert [line.data for line in await one.call("read_log", id_)] == ["try 1", "try 2"]

    @store_test
    async def test_outputs_are_added_by_key(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        assert await other.call("get_outputs", id_) == {}
        assert await one.call("put_outputs", id_, job.fence, {"a": "1", "b": "é\n"}) is True
        assert await one.call("put_outputs", id_, job.fence, {"b": "2", "": ""}) is True
        await one.finish(job)
        assert await other.call("get_outputs", id_) == {"a": "1", "b": "2", "": ""}

    @store_test
    async def test_only_the_current_lease_puts_outputs(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        wrong = msgspec.structs.replace(job, fence=job.fence + 1)
        assert await other.call("put_outputs", id_, wrong.fence, {"a": "1"}) is False
        await one.finish(job)
        assert await one.call("put_outputs", id_, job.fence, {"a": "1"}) is False
        assert await other.call("get_outputs", id_) == {}

    @store_test
    async def test_an_unknown_job_has_no_logs_and_no_outputs(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        unknown = bench.job().id
        assert await one.call("read_log", unknown) == []
        assert await one.call("get_outputs", unknown) == {}
        assert await one.call("put_outputs", unknown, 7, {"a": "1"}) is False
        assert await one.call("get_outputs", unknown) == {}
