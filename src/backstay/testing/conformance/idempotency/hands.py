"""What an actor does with `stay.idempotency`: a function that is told what to do by data, since it may cross a pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backstay.testing.conformance.settling import settled


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call answered, and whether this actor was the one who ran it."""

    value: Any
    ran: bool


class Trouble(Exception):
    """What a function raises that was told to fail."""


class IdempotencyHands:
    """The verbs of idempotency."""

    _backstay: Any

    async def _run_once(self, key: Any, value: Any, fails: str, gate: str, options: dict[str, Any]) -> Outcome:
        """Run a function that answers `value`, or fails with a reason. `gate`: a lock that it has to get first, so
        that whoever holds that lock says when it may end.
        """
        ran = False

        def end() -> Any:
            if fails:
                raise Trouble(fails)
            return value

        async def work() -> Any:
            nonlocal ran
            ran = True
            if gate:
                lease = await self._backstay.lock(gate).acquire()
                await lease.release()
            return end()

        def blocking_work() -> Any:
            nonlocal ran
            ran = True
            if gate:
                self._backstay.lock(gate).acquire().release()
            return end()

        is_async = hasattr(self._backstay, "__aenter__")
        run = self._backstay.idempotency.run
        outcome = await settled(run(key, work if is_async else blocking_work, **options))
        return Outcome(outcome, ran)

    async def _inspect_key(self, key: Any) -> Any:
        return await settled(self._backstay.idempotency.inspect(key))

    async def _forget_key(self, key: Any) -> bool:
        return bool(await settled(self._backstay.idempotency.forget(key)))

    async def _fingerprint(self, value: Any) -> str:
        """What this process makes of the same data."""
        from backstay.idempotency.fingerprint import fingerprint

        return fingerprint(value)
