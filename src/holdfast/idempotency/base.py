"""What callers ask for, checked."""

from __future__ import annotations

from typing import Literal, cast

from holdfast import inputs
from holdfast.core import Core
from holdfast.errors import ConfigError
from holdfast.idempotency.flows import Spec
from holdfast.inputs import Duration

OnError = Literal["forget", "replay"]
OnUnavailable = Literal["raise", "allow"]


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
    return Spec(
        inputs.name(key, "key"),
        fingerprint,
        policy.idempotency_ttl if ttl is None else inputs.seconds(ttl, "ttl"),
        policy.idempotency_lease if lease is None else inputs.seconds(lease, "lease"),
        None if wait is None else inputs.seconds(wait, "wait", zero=True),
        _one_of(on_error, "on_error", ("forget", "replay")) == "replay",
        _one_of(on_unavailable or policy.idempotency_on_unavailable, "on_unavailable", ("raise", "allow")) == "allow",
    )


def _one_of(given: str, what: str, known: tuple[str, ...]) -> str:
    if cast("object", given) not in known:
        raise ConfigError(f"{what} is {' or '.join(map(repr, known))}; got {given!r}")
    return given
