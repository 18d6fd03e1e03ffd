"""Validate the options of an idempotent call, for both APIs."""

from __future__ import annotations

from typing import Any, Literal, NoReturn, TypeVar

from backstay.engine.base import Room
from backstay.errors import ConfigError
from backstay.idempotency.codec import codec_for
from backstay.idempotency.fingerprint import fingerprint as fingerprint_of
from backstay.idempotency.flows import IdempotencySpec
from backstay.idempotency.machine import IDEMPOTENCY, KeyState
from backstay.idempotency.transaction import BaseTransaction, schema
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import Duration

T = TypeVar("T", bound=BaseTransaction)

OnError = Literal["forget", "replay"]
OnUnavailable = Literal["raise", "allow"]
ON_ERROR, ON_UNAVAILABLE = ("forget", "replay"), ("raise", "allow")


def spec(
    core: Core,
    key: str,
    fingerprint: str,
    ttl: Duration | None,
    lease: Duration | None,
    wait: Duration | None,
    on_error: OnError,
    on_unavailable: OnUnavailable | None,
    room: Room[KeyState] = IDEMPOTENCY,
) -> IdempotencySpec:
    """Validate the options. An option that is None gets its default from the policy, except `wait`, where None means no
    limit.
    """
    policy = core.policy
    mode = on_unavailable or policy.idempotency_on_unavailable
    if on_error not in ON_ERROR:  # a caller without a type checker may pass any value
        _refuse("on_error", ON_ERROR, on_error)
    if mode not in ON_UNAVAILABLE:
        _refuse("on_unavailable", ON_UNAVAILABLE, mode)
    return IdempotencySpec(
        validation.check_name(key, "key"),
        fingerprint,
        policy.idempotency_ttl if ttl is None else validation.to_seconds(ttl, "ttl"),
        policy.idempotency_lease if lease is None else validation.to_seconds(lease, "lease"),
        None if wait is None else validation.to_seconds(wait, "wait", zero=True),
        on_error == "replay",
        mode == "allow",
        room,
    )


def _refuse(what: str, known: tuple[str, ...], given: object) -> NoReturn:
    raise ConfigError(f"{what} must be {' or '.join(map(repr, known))}; got {given!r}")


class BaseIdempotency:
    """The parts of `stay.idempotency` that both APIs share."""

    __slots__ = ("_core", "_room")

    def __init__(self, core: Core, room: Room[KeyState] = IDEMPOTENCY) -> None:
        self._core = core
        self._room = room

    @staticmethod
    def schema(database: str) -> str:
        """Return the CREATE TABLE statement that `transaction` needs: for "postgresql" or "sqlite"."""
        return schema(database)

    def _options(
        self,
        key: str,
        fingerprint: Any,
        ttl: Duration | None,
        lease: Duration | None,
        wait: Duration | None,
        on_error: OnError,
        on_unavailable: OnUnavailable | None,
    ) -> IdempotencySpec:
        about = fingerprint_of(fingerprint)
        return spec(self._core, key, about, ttl, lease, wait, on_error, on_unavailable, self._room)

    def _transaction(
        self,
        kind: type[T],
        connection: Any,
        key: str,
        fingerprint: Any,
        ttl: Duration | None,
        codec: Codec | None,
    ) -> T:
        wanted = self._options(key, fingerprint, ttl, None, None, "forget", None)
        namespace = self._core.engine.namespace
        return kind(connection, namespace, wanted.name, wanted.fingerprint, wanted.ttl, codec_for(codec))
