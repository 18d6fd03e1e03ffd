"""Definitions, by name and version."""

from __future__ import annotations

import asyncio

from backstay.job.run_model import Definition
from backstay.testing.conformance.job.bench import Bench, store_test


class RunDefiningTests:
    """Tests of `put_definition`, `get_definition` and `list_definitions`."""

    @store_test
    async def test_versions_count_from_one(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for version in (1, 2, 3):
            bench.advance(1)
            doc = b"\x00" * version
            made = await one.call("put_definition", "build", f"digest {version}", doc)
            assert made == Definition(
                workflow="build", version=version, digest=f"digest {version}", doc=doc, created=bench.now
            )
            assert await other.call("get_definition", "build") == made
        for version in (1, 2, 3):
            assert (await other.call("get_definition", "build", version)).doc == b"\x00" * version
        assert await other.call("get_definition", "build", 4) is None
        assert await other.call("get_definition", "other") is None
        assert await other.call("get_definition", "other", 1) is None

    @store_test
    async def test_the_same_document_is_the_same_version(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        first = await one.call("put_definition", "build", "d1", b"one")
        bench.advance(1)
        assert await other.call("put_definition", "build", "d1", b"one") == first
        second = await other.call("put_definition", "build", "d2", b"two")
        assert second.version == 2
        back = await other.call("put_definition", "build", "d1", b"one")
        assert back.version == 3  # a document is compared only with the newest version, so an older one is stored again

    @store_test
    async def test_concurrent_stores_of_one_definition_create_one_version(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        for nth in range(5):
            calls = [client.call("put_definition", "build", f"d{nth}", b"doc") for client in clients for _ in range(2)]
            versions = [made.version for made in await asyncio.gather(*calls)]
            assert versions == [nth + 1] * 8

    @store_test
    async def test_different_documents_at_the_same_moment_are_different_versions(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        calls = [client.call("put_definition", "build", f"d{nth}", b"doc") for nth, client in enumerate(clients * 3)]
        made = await asyncio.gather(*calls)
        assert len({one.version for one in made if one.digest == "d0"}) == 1
        newest = await clients[0].call("get_definition", "build")
        stored = [await clients[1].call("get_definition", "build", nth) for nth in range(1, newest.version + 1)]
        assert [one.version for one in stored] == list(range(1, newest.version + 1))
        assert {one.digest for one in stored} == {f"d{nth}" for nth in range(12)}

    @store_test
    async def test_the_newest_of_each_is_listed_by_name(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        names = ["b", "a", "Z", "é", "日本", "a b", "{a}:%_", "\U0001f600"]
        for name in names:
            await one.call("put_definition", name, "d1", b"old")
            await one.call("put_definition", name, "d2", b"new")
        listed = await other.call("list_definitions")
        assert [(each.workflow, each.version, each.digest, each.doc) for each in listed] == [
            (name, 2, "d2", b"") for name in sorted(names)
        ]
        pages: list[str] = []
        while page := await other.call("list_definitions", after=pages[-1] if pages else "", limit=2):
            assert len(page) <= 2
            pages += [each.workflow for each in page]
        assert pages == sorted(names)

    @store_test
    async def test_large_documents_come_back_whole(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        large = bytes(range(256)) * 4096
        await one.call("put_definition", "large", "d", large)
        assert (await other.call("get_definition", "large")).doc == large
