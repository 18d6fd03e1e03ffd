"""Artifacts are files that are written in parts. They become visible when the last part is written."""

from __future__ import annotations

import msgspec

from backstay.job.run_model import Artifact
from backstay.testing.conformance.job.bench import LEASE, Bench, StoreClient, store_test
from backstay.testing.conformance.run.cases import default_finish


def described(job: str, parts: list[bytes], name: str = "wheel.whl", digest: str = "d1") -> Artifact:
    return Artifact(job=job, name=name, size=sum(map(len, parts)), digest=digest)


async def put(client: StoreClient, artifact: Artifact, fence: int, parts: list[bytes]) -> list[bool]:
    last = len(parts) - 1
    return [
        await client.call("put_artifact", artifact, fence, nth, part, last=nth == last)
        for nth, part in enumerate(parts)
    ]


async def read(client: StoreClient, job: str, name: str = "wheel.whl") -> list[bytes]:
    parts: list[bytes] = []
    while (part := await client.call("read_artifact", job, name, len(parts))) is not None:
        parts.append(part)
    return parts


class RunArtifactsTests:
    """Tests of `put_artifact`, `list_artifacts` and `read_artifact`."""

    @store_test
    async def test_an_artifact_is_visible_with_its_last_part(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        parts = [b"\x00one", b"", b"three\xff"]
        artifact = described(id_, parts)
        for nth, part in enumerate(parts):
            assert await other.call("list_artifacts", id_) == []
            assert await read(other, id_) == []
            bench.advance(1)
            assert await one.call("put_artifact", artifact, job.fence, nth, part, last=nth == 2) is True
        assert await other.call("list_artifacts", id_) == [msgspec.structs.replace(artifact, created=bench.now)]
        assert await read(other, id_) == parts
        await one.exchange([default_finish(job)])
        assert await read(other, id_) == parts

    @store_test
    async def test_sending_a_part_twice_writes_it_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        parts = [b"a", b"b", b"c"]
        artifact = described(id_, parts)
        for nth, part in enumerate(parts):
            for data in (part, b"other"):
                assert await one.call("put_artifact", artifact, job.fence, nth, data, last=nth == 2) is True
        assert await one.call("put_artifact", artifact, job.fence, 0, b"other", last=False) is True
        assert await read(other, id_) == parts

    @store_test
    async def test_an_empty_file_is_a_file(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        await put(one, described(id_, [b""], "empty"), job.fence, [b""])
        assert [each.size for each in await other.call("list_artifacts", id_)] == [0]
        assert await read(other, id_, "empty") == [b""]

    @store_test
    async def test_a_new_file_replaces_one_of_its_name_with_its_last_part(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        old, new = [b"old 1", b"old 2", b"old 3"], [b"new 1", b"new 2"]
        await put(one, described(id_, old), job.fence, old)
        artifact = described(id_, new, digest="d2")
        assert await one.call("put_artifact", artifact, job.fence, 0, new[0], last=False) is True
        assert await read(other, id_) == old
        assert [each.digest for each in await other.call("list_artifacts", id_)] == ["d1"]
        assert await one.call("put_artifact", artifact, job.fence, 1, new[1], last=True) is True
        assert await read(other, id_) == new
        assert [(each.digest, each.size) for each in await other.call("list_artifacts", id_)] == [("d2", 10)]

    @store_test
    async def test_only_the_current_lease_stores_artifacts(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=1)
        artifact = described(id_, [b"x"])
        assert await put(one, artifact, 7, [b"x"]) == [False]
        old = await one.take()
        bench.advance(LEASE)
        await other.reap()
        assert await put(one, artifact, old.fence, [b"x"]) == [False]
        new = await other.take()
        assert await put(one, artifact, old.fence, [b"x"]) == [False]
        assert await one.call("list_artifacts", id_) == []
        assert await put(other, artifact, new.fence, [b"y"]) == [True]
        await other.exchange([default_finish(new)])
        later = described(id_, [b"z"], digest="d2")
        assert await put(other, later, new.fence, [b"z"]) == [False]
        assert await read(one, id_) == [b"y"]

    @store_test
    async def test_without_a_fence_any_caller_may_store_an_artifact(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add()
        assert await put(one, described(id_, [b"x"]), 0, [b"x"]) == [True]
        assert await read(one, id_) == [b"x"]
        unknown = bench.new_id()
        assert await put(one, described(unknown, [b"x"]), 0, [b"x"]) == [False]
        assert await one.call("list_artifacts", unknown) == []

    @store_test
    async def test_files_are_listed_by_name_and_kept_apart(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(2)
        first, second = await one.claim(2)
        names = ["b", "a/b", "../a", "é", "{x}:0", "日本 \u2028", "a"]
        for job in (first, second):
            for name in names:
                data = [f"{job.id} {name}".encode(), b"more"]
                await put(one, described(job.id, data, name), job.fence, data)
        for job in (first, second):
            assert [each.name for each in await other.call("list_artifacts", job.id)] == sorted(names)
            for name in names:
                assert await read(other, job.id, name) == [f"{job.id} {name}".encode(), b"more"]
        assert await other.call("read_artifact", first.id, "nothing", 0) is None
        assert await other.call("read_artifact", first.id, "a", 2) is None

    @store_test
    async def test_a_large_file_is_returned_unchanged(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        parts = [bytes([nth]) * 256 * 1024 for nth in range(16)]
        assert await put(one, described(id_, parts), job.fence, parts) == [True] * 16
        assert await read(other, id_) == parts

    @store_test
    async def test_files_outlive_attempts(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=1)
        job = await one.take()
        await put(one, described(id_, [b"x"]), job.fence, [b"x"])
        await one.exchange([default_finish(job, "retry")])
        assert await read(other, id_) == [b"x"]
