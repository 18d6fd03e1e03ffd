"""Who may come in: bearer tokens with a role. The server stores hashes only, and compares in constant time.

A token is `bst_<id>_<secret>`: the id finds its record, the secret (256 random bits) proves it. A hash without salt is
enough for a secret that nobody can guess.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backstay.engine.base import steady
from backstay.errors import ConfigError, EngineError
from backstay.job.api.registry import store_of
from backstay.job.flows import send
from backstay.job.run_model import TokenRecord
from backstay.server.http.problem import Refusal
from backstay.server.http.route import ROLES, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backstay.runtime.core import Core

PREFIX = "bst"
ID_BYTES, SECRET_BYTES = 6, 32
#: A token that was made or revoked is known everywhere after this many seconds; whoever waits is asked for it as often.
FRESH = 2.0
#: Longer ones are no tokens.
LONGEST = 200
CHALLENGE = {"www-authenticate": 'Bearer realm="backstay"'}


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever sent a request. Without tokens everybody is the admin of this machine."""

    id: str
    roles: frozenset[Role]


NOBODY = Principal("", frozenset())
LOCAL = Principal("", frozenset(ROLES))


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def new_token(role: str, name: str = "", expires: int = 0) -> tuple[str, TokenRecord]:
    """A token as it is shown, once, and its record. `expires`: µs of the engine's clock; 0: never."""
    if role not in ROLES:
        raise ConfigError(f"role is one of {', '.join(ROLES)}; got {role!r}")
    id_, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
    return f"{PREFIX}_{id_}_{secret}", TokenRecord(id=id_, digest=digest(secret), role=role, name=name, expires=expires)


def unknown() -> Refusal:
    return Refusal(401, "this token is not known, has expired or was revoked", headers=CHALLENGE)


class Keyring:
    """The tokens that count now. Read from the store at most every two seconds."""

    def __init__(self, core: Core, *, required: bool) -> None:
        self._core = core
        self._required = required
        self._known: dict[str, TokenRecord] = {}
        #: Whether there ever was one: revoking the last token must not open the door.
        self._closed = False
        self._read_at = -1.0
        self._reading: asyncio.Task[None] | None = None

    @property
    def on(self) -> bool:
        """Whether a request needs a token."""
        return self._required or self._closed

    def learn(self, records: Iterable[TokenRecord]) -> None:
        self._known = {record.id: record for record in records}
        self._closed = self._closed or bool(self._known)
        self._read_at = steady()

    @property
    def is_stale(self) -> bool:
        return steady() - self._read_at >= FRESH or self._read_at < 0

    async def refresh(self) -> None:
        """Read them, if that is due. One reads for all, and all wait: nobody comes in by what was so long ago."""
        if not self.is_stale:
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            self.learn(await send(self._core, store_of(self._core).tokens()))
        except EngineError:
            if self._read_at < 0:
                raise
            self._read_at = steady()  # those that were known count on: the engine is away, and nothing else works
        finally:
            self._reading = None

    def counts(self, who: Principal) -> bool:
        """Whether somebody who was let in would still be."""
        if not who.id:
            return not self.on
        record = self._known.get(who.id)
        return record is not None and not self._is_past(record)

    def _is_past(self, record: TokenRecord) -> bool:
        return bool(record.expires) and record.expires <= self._core.engine.now()

    def identify(self, header: bytes | None) -> Principal:
        """Whose token this is. Raises Refusal (401)."""
        if header is None:
            if not self.on:
                return LOCAL
            raise Refusal(401, "this route needs a token: Authorization: Bearer bst_…", headers=CHALLENGE)
        found = self._find(header)
        if found is None:
            raise unknown()
        return found

    def _find(self, header: bytes) -> Principal | None:
        scheme, _, given = header.partition(b" ")
        token = given.strip()
        if scheme.lower() != b"bearer" or not token or len(token) > LONGEST or not token.isascii():
            return None
        prefix, _, rest = token.decode().partition("_")
        id_, _, secret = rest.partition("_")
        record = self._known.get(id_)
        # As long for an id that nobody has as for a secret that is wrong.
        right = hmac.compare_digest(digest(secret), record.digest if record is not None else bytes(32))
        if record is None or not right or prefix != PREFIX:
            return None
        if self._is_past(record):
            return None
        return Principal(record.id, frozenset(role for role in ROLES if role == record.role))
