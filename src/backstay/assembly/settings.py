"""The settings of a Backstay, from its arguments and from environment variables."""

from __future__ import annotations

import os
from typing import cast

from backstay.engine.base import Engine
from backstay.engine.client_types import ClientObject
from backstay.errors import ConfigError
from backstay.hub.base import Hub
from backstay.policy import BALANCED, Policy
from backstay.runtime import validation

NAMESPACE = "backstay"
#: The largest number of shards. A worker polls every shard, so each shard adds load.
MOST_SHARDS = 256


class Settings:
    """The arguments of a Backstay, validated, with defaults from the environment."""

    __slots__ = ("engine", "hub", "hub_prefix", "namespace", "policy", "shards", "url")

    def __init__(
        self,
        url: str | ClientObject | None,
        namespace: str | None,
        profile: Policy | None,
        hub: str | Hub | ClientObject | None = None,
        hub_prefix: str | None = None,
        engine: Engine | ClientObject | None = None,
        shards: int | None = None,
    ) -> None:
        #: None: the Redis engine takes the number from BACKSTAY_SHARDS. Other engines have no shards.
        self.shards = None if shards is None else check_shards(shards, "shards")
        self.engine: Engine | None = None
        if engine is not None and hasattr(engine, "apply_many"):
            self.engine = cast("Engine", engine)
        elif engine is not None:
            url = cast("ClientObject", engine)  # type: ignore[redundant-cast] # pyright narrows less here
        #: A URL, or the user's own client or pool.
        self.url: str | ClientObject = (
            url if url is not None and url != "" else os.environ.get("BACKSTAY_URL") or "sqlite:///backstay.db"
        )
        self.namespace = validation.check_namespace(namespace or os.environ.get("BACKSTAY_NAMESPACE") or NAMESPACE)
        self.policy = profile or BALANCED
        self.hub: str | Hub | ClientObject | None = hub if hub is not None else os.environ.get("BACKSTAY_HUB") or None
        # A `hub=` that names the engine itself is the same as none.
        if self.hub is self.url or (isinstance(self.hub, str) and self.hub == self.url):
            self.hub = None
        self.hub_prefix = self.namespace if hub_prefix is None else validation.check_namespace(hub_prefix, "hub_prefix")


def read_shards() -> int:
    """Return the number of job shards on Redis from BACKSTAY_SHARDS, default 1."""
    given = os.environ.get("BACKSTAY_SHARDS") or "1"
    if not (given.isascii() and given.isdigit()):
        raise ConfigError(f"BACKSTAY_SHARDS is a whole number, as in BACKSTAY_SHARDS=8; got {given!r}")
    return check_shards(int(given), "BACKSTAY_SHARDS")


def check_shards(given: int, what: str) -> int:
    """Return the given number of shards if it is valid, else raise a ConfigError. `what` is the name of the option or
    variable in its message.
    """
    if validation.check_count(given, what) > MOST_SHARDS:
        raise ConfigError(f"{what} is at most {MOST_SHARDS}; got {given}")
    return given
