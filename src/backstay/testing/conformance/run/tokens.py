"""Access tokens of a server, stored by their hash."""

from __future__ import annotations

import asyncio

from backstay.job.run_model import TokenRecord
from backstay.testing.conformance.job.bench import HOUR, Bench, store_test


class RunTokensTests:
    """Tests of `put_token`, `drop_token`, `tokens` and `put_secret`."""

    @store_test
    async def test_tokens_are_stored_and_deleted(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        assert await one.call("tokens") == []
        made = [
            TokenRecord(id=id_, digest=bytes([nth]) * 32, role=role, name=name, owner=owner, created=bench.now - nth)
            for nth, (id_, role, name, owner) in enumerate(
                (("b", "admin", "é \u2028", ""), ("a", "worker", "", "n8n"), ("{c}:", "submit", "x", "é \u2028"))
            )
        ]
        for token in made:
            await one.call("put_token", token)
        assert await other.call("tokens") == sorted(made, key=lambda token: token.id)
        assert await other.call("drop_token", "b") is True
        assert await one.call("drop_token", "b") is False
        assert [token.id for token in await one.call("tokens")] == ["a", "{c}:"]

    @store_test
    async def test_an_expired_token_is_not_found(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for id_, expires in (("soon", bench.now + HOUR), ("never", 0), ("later", bench.now + 2 * HOUR)):
            await one.call("put_token", TokenRecord(id=id_, digest=b"d", role="admin", created=1, expires=expires))
        bench.advance(HOUR - 1)
        assert [token.id for token in await other.call("tokens")] == ["later", "never", "soon"]
        bench.advance(1)
        assert [token.id for token in await other.call("tokens")] == ["later", "never"]

    @store_test
    async def test_storing_a_token_again_replaces_it(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for role in ("admin", "worker"):
            await one.call("put_token", TokenRecord(id="t", digest=role.encode(), role=role, created=5))
        assert await other.call("tokens") == [TokenRecord(id="t", digest=b"worker", role="worker", created=5)]

    @store_test
    async def test_the_first_secret_of_a_name_is_kept(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        value = bytes(range(256))
        assert await one.call("put_secret", "key", value) == value
        assert await other.call("put_secret", "key", b"another") == value
        assert await other.call("put_secret", "other", b"o") == b"o"

    @store_test
    async def test_concurrent_callers_get_the_same_secret(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        found = await asyncio.gather(
            *(client.call("put_secret", "key", b"%d" % nth) for nth, client in enumerate(clients))
        )
        assert len(set(found)) == 1
