"""Names of leases over HTTP: job id, time to live, MAC, fence. So any server can serve any lease, even a server that
has just started.

The MAC binds a name to the owner of the token that claimed the job. Job ids are visible to others and fences can be
guessed from a job's start time; without the MAC they do not suffice to finish the job.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

import msgspec

from backstay.engine.base import Micros, steady
from backstay.errors import JobNotFound
from backstay.job.flows import find_shard, send
from backstay.job.ids import lease_id, split_lease
from backstay.job.store import Store
from backstay.runtime.core import Core
from backstay.server.http.auth import Principal
from backstay.server.http.problem import Refusal

#: The times to live that a worker may request: from a second to a day.
SHORTEST, LONGEST = 1_000_000, 86_400_000_000
#: Fences are signed 64-bit numbers in all engines.
LARGEST_FENCE = 2**63 - 1
#: The name under which the engine stores the key, the key's bytes, and the hexadecimal digits of a MAC (128 bits).
KEY_NAME, KEY_BYTES, MAC_LENGTH = "lease-names", 32, 32
#: Seconds between two reads of the key. A server reads it again when a MAC is wrong, because another server may have
#: made a new key after the engine has lost its data.
REREAD = 1.0


class LeaseRef(msgspec.Struct, frozen=True):
    """A lease that a request names: of a job, with a fence."""

    #: As in the request; the response names the lease so, too.
    name: str
    job: str
    fence: int
    shard: int
    ttl: Micros

    @property
    def key(self) -> str:
        """The lease's id in the engine, under which the server caches it."""
        return lease_id(self.job, self.fence)


class LeaseNames:
    """Makes names of leases and checks them, with a key that all servers of a namespace share."""

    def __init__(self, core: Core, store: Store) -> None:
        self._core = core
        self._store = store
        self._key = b""
        self._read_at = 0.0

    async def load_key(self) -> None:
        """Read the key if this server does not have it yet."""
        if not self._key:
            await self._read_key()

    def make(self, principal: Principal, job: str, fence: int, ttl: Micros) -> str:
        """Return the name of a lease, which ends with the fence. Call `load_key` before."""
        millis = ttl // 1000
        return lease_id(f"{job}.{millis}.{self._mac(principal, job, fence, millis)}", fence)

    async def check(self, principal: Principal, name: str) -> LeaseRef:
        """Return the lease that a name denotes. A malformed name, a wrong MAC and the lease of another owner raise the
        same Refusal (409) as an expired lease.
        """
        try:
            rest, fence = split_lease(name)
            job, millis, mac = rest.split(".")
            ttl = int(millis) * 1000
            if not 0 <= fence <= LARGEST_FENCE or not SHORTEST <= ttl <= LONGEST:
                raise ValueError(name)
            shard = find_shard(self._core, job)
        except (ValueError, JobNotFound):
            raise stale_lease(name) from None
        if not self._is_right(principal, job, fence, ttl, mac):
            if self._key and steady() - self._read_at < REREAD:
                raise stale_lease(name)
            await self._read_key()
            if not self._is_right(principal, job, fence, ttl, mac):
                raise stale_lease(name)
        return LeaseRef(name, job, fence, shard, ttl)

    def of_server(self, job: str, fence: int) -> LeaseRef:
        """Return the lease of a job that the server itself has claimed and does not hand out."""
        return LeaseRef(lease_id(job, fence), job, fence, find_shard(self._core, job), SHORTEST)

    def _is_right(self, principal: Principal, job: str, fence: int, ttl: Micros, mac: str) -> bool:
        if not self._key:
            return False
        return hmac.compare_digest(mac.encode(), self._mac(principal, job, fence, ttl // 1000).encode())

    def _mac(self, principal: Principal, job: str, fence: int, millis: int) -> str:
        text = f"{job}\0{fence}\0{millis}\0{principal.owner}"
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()[:MAC_LENGTH]

    async def _read_key(self) -> None:
        """Read the key, or store one if the engine has none. If the engine has lost this server's key, it is stored
        again: then leases that this server has named stay valid.
        """
        made = self._key or secrets.token_bytes(KEY_BYTES)
        self._key = await send(self._core, self._store.put_secret(KEY_NAME, made))
        self._read_at = steady()


def stale_lease(lease: str, why: str = "it expired, was finished or never existed") -> Refusal:
    return Refusal(409, f"lease {lease[:200]!r} is not current: {why}. Nothing was changed; stop working on its job.")
