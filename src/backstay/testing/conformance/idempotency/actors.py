"""The calls of an actor to `stay.idempotency`. What the idempotent function does is given as plain data, because the
actor may be in another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backstay.runtime.flows import maybe_await


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of an idempotent call, and whether this actor ran the function itself."""

    value: Any
    ran: bool


class ScriptedError(Exception):
    """Raised by the idempotent function when the test wants it to fail."""


class IdempotencyActions:
    """The idempotency calls of an actor."""

    _backstay: Any

    async def _run_once(self, key: Any, value: Any, fails: str, gate: str, options: dict[str, Any]) -> CallResult:
        """Run a function that returns `value`, or raises ScriptedError with the reason `fails`. `gate`: a lock that the
        function acquires first, so that the holder of that lock controls when the function returns.
        """
        ran = False

        def end() -> Any:
            if fails:
                raise ScriptedError(fails)
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
        outcome = await maybe_await(run(key, work if is_async else blocking_work, **options))
        return CallResult(outcome, ran)

    async def _inspect_key(self, key: Any) -> Any:
        return await maybe_await(self._backstay.idempotency.inspect(key))

    async def _forget_key(self, key: Any) -> bool:
        return bool(await maybe_await(self._backstay.idempotency.forget(key)))

    async def _fingerprint(self, value: Any) -> str:
        """Return the fingerprint that this process computes for a value."""
        from backstay.idempotency.fingerprint import fingerprint

        return fingerprint(value)
