"""Access tokens of a server, stored by their hash."""

from __future__ import annotations

from backstay.job.run_model import TokenRecord
from backstay.testing.conformance.job.bench import HOUR, Bench, claim


class Tokens:
    """Tests of `put_token`, `drop_token` and `tokens`."""

    @claim
    async def test_tokens_are_kept_and_dropped(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        assert await one.ask("tokens") == []
        made = [
            TokenRecord(id=id_, digest=bytes([nth]) * 32, role=role, name=name, created=bench.now - nth)
            for nth, (id_, role, name) in enumerate(
                (("b", "admin", "é \u2028"), ("a", "worker", ""), ("{c}:", "submit", "x"))
            )
        ]
        for token in made:
            await one.ask("put_token", token)
        assert await other.ask("tokens") == sorted(made, key=lambda token: token.id)
        assert await other.ask("drop_token", "b") is True
        assert await one.ask("drop_token", "b") is False
        assert [token.id for token in await one.ask("tokens")] == ["a", "{c}:"]

    @claim
    async def test_an_expired_token_is_none(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for id_, expires in (("soon", bench.now + HOUR), ("never", 0), ("later", bench.now + 2 * HOUR)):
            await one.ask("put_token", TokenRecord(id=id_, digest=b"d", role="admin", created=1, expires=expires))
        bench.wait(HOUR - 1)
        assert [token.id for token in await other.ask("tokens")] == ["later", "never", "soon"]
        bench.wait(1)
        assert [token.id for token in await other.ask("tokens")] == ["later", "never"]

    @claim
    async def test_a_token_put_again_replaces_itself(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for role in ("admin", "worker"):
            await one.ask("put_token", TokenRecord(id="t", digest=role.encode(), role=role, created=5))
        assert await other.ask("tokens") == [TokenRecord(id="t", digest=b"worker", role="worker", created=5)]
