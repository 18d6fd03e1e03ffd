"""What callers ask for, checked."""

from __future__ import annotations

from typing import Literal, NoReturn

from backstay.errors import ConfigError
from backstay.idempotency.flows import Spec
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration

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
) -> Spec:
    """What the caller asked for, checked, with the policy's defaults filled in."""
    policy = core.policy
    away = on_unavailable or policy.idempotency_on_unavailable
    if on_error not in ON_ERROR:  # callers without a type checker pass anything
        _refuse("on_error", ON_ERROR, on_error)
    if away not in ON_UNAVAILABLE:
        _refuse("on_unavailable", ON_UNAVAILABLE, away)
    return Spec(
        validation.name(key, "key"),
        fingerprint,
        policy.idempotency_ttl if ttl is None else validation.seconds(ttl, "ttl"),
        policy.idempotency_lease if lease is None else validation.seconds(lease, "lease"),
        None if wait is None else validation.seconds(wait, "wait", zero=True),
        on_error == "replay",
        away == "allow",
    )


def _refuse(what: str, known: tuple[str, ...], given: object) -> NoReturn:
    raise ConfigError(f"{what} is {' or '.join(map(repr, known))}; got {given!r}")
