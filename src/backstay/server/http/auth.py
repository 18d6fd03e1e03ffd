"""Bearer tokens with a role. The store keeps only their hashes, and the server compares in constant time.

A token is `bst_<id>_<secret>`: the id finds its record, the secret (256 random bits) authenticates it. SHA-256 without
salt suffices, since a random 256-bit secret cannot be guessed or looked up in a table.
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
from backstay.job.flows import send
from backstay.job.run_model import TokenRecord
from backstay.job.store import JOB_STORE
from backstay.runtime import validation
from backstay.server.http.problem import Refusal
from backstay.server.http.route import ROLES, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backstay.runtime.core import Core

PREFIX = "bst"
ID_BYTES, SECRET_BYTES = 6, 32
#: Seconds until every server sees a new or revoked token. Streams and long polls recheck their token at this interval.
REFRESH_SECONDS = 2.0
#: The longest token that is accepted, in characters. A longer one is rejected without looking it up.
LONGEST = 200
CHALLENGE = {"www-authenticate": 'Bearer realm="backstay"'}


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated sender of a request: a token's id, roles and owner. What a principal takes (a lock, a lease of
    a job, a worker id) belongs to its owner.
    """

    id: str
    roles: frozenset[Role]
    #: The owner that the token was created with; without one, the token's id. "" without tokens.
    owner: str = ""

    @property
    def is_admin(self) -> bool:
        return "admin" in self.roles


ANONYMOUS = Principal("", frozenset())
#: The sender of a request without a token, while the server requires none. It has all roles.
LOCAL_ADMIN = Principal("", frozenset(ROLES))


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def new_token(role: str, name: str = "", expires: int = 0, owner: str = "") -> tuple[str, TokenRecord]:
    """Make a token: its text, which is shown once, and its record. `expires`: µs of the engine's clock; 0: never.
    `owner`: tokens with the same owner share their locks, leases and worker ids; "": the token is an owner of its own.
    """
    if role not in ROLES:
        raise ConfigError(f"role must be one of {', '.join(ROLES)}; got {role!r}")
    if owner:
        validation.check_label(owner, "owner")
    id_, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
    record = TokenRecord(id=id_, digest=digest(secret), role=role, name=name, expires=expires, owner=owner)
    return f"{PREFIX}_{id_}_{secret}", record


def invalid_token() -> Refusal:
    return Refusal(401, "this token is unknown, has expired or was revoked", headers=CHALLENGE)


class Keyring:
    """The valid tokens, cached from the store for at most `REFRESH_SECONDS`. Runs on the event loop only."""

    def __init__(self, core: Core, *, required: bool) -> None:
        self._core = core
        self._required = required
        self._known: dict[str, TokenRecord] = {}
        #: Whether this server has ever read a token from the store. From then on, requests need a token, even after the
        #: last one was revoked.
        self._had_tokens = False
        self._read_at = -1.0
        self._reading: asyncio.Task[None] | None = None

    @property
    def requires_token(self) -> bool:
        return self._required or self._had_tokens

    def load(self, records: Iterable[TokenRecord]) -> None:
        self._known = {record.id: record for record in records}
        self._had_tokens = self._had_tokens or bool(self._known)
        self._read_at = steady()

    @property
    def is_stale(self) -> bool:
        return steady() - self._read_at >= REFRESH_SECONDS or self._read_at < 0

    async def refresh(self) -> None:
        """Read the tokens from the store if they are stale. Concurrent callers share one read and wait for it, so no
        request is authenticated against stale tokens.
        """
        if not self.is_stale:
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            self.load(await send(self._core, self._core.services.get(JOB_STORE).tokens()))
        except EngineError:
            if self._read_at < 0:
                raise
            self._read_at = steady()  # the engine is unavailable: accept the tokens that were read last
        finally:
            self._reading = None

    def is_valid(self, principal: Principal) -> bool:
        """Whether a principal may still use the server. With a token: the token is neither revoked nor expired. Without
        a token: the server still requires none.
        """
        if not principal.id:
            return not self.requires_token
        record = self._known.get(principal.id)
        return record is not None and not self._has_expired(record)

    def _has_expired(self, record: TokenRecord) -> bool:
        return bool(record.expires) and record.expires <= self._core.engine.now()

    def identify(self, header: bytes | None) -> Principal:
        """Return the principal for the value of an Authorization header; None: the header is missing. Raises Refusal
        (401).
        """
        if header is None:
            if not self.requires_token:
                return LOCAL_ADMIN
            raise Refusal(401, "this route needs a token: Authorization: Bearer bst_…", headers=CHALLENGE)
        found = self._find(header)
        if found is None:
            raise invalid_token()
        return found

    def _find(self, header: bytes) -> Principal | None:
        scheme, _, given = header.partition(b" ")
        token = given.strip()
        if scheme.lower() != b"bearer" or not token or len(token) > LONGEST or not token.isascii():
            return None
        prefix, _, rest = token.decode().partition("_")
        id_, _, secret = rest.partition("_")
        record = self._known.get(id_)
        # An unknown id takes as long as a wrong secret, so that timing reveals no ids.
        is_right = hmac.compare_digest(digest(secret), record.digest if record is not None else bytes(32))
        if record is None or not is_right or prefix != PREFIX:
            return None
        if self._has_expired(record):
            return None
        roles: frozenset[Role] = frozenset(role for role in ROLES if role == record.role)
        return Principal(record.id, roles, record.owner or record.id)
