"""Send the Redis commands that n8n's nodes send for a lock and a limit, so that tests need no n8n.

Each method of `Nodes` acts like one node: it uses no transaction and no script, because stock nodes cannot. The order
of the commands is that of the primitives. To acquire: GET; INCR and EXPIRE if the key is absent; SET of the identity.
To release: GET, compare, DEL and DEL. Run as a program, it acquires a lock repeatedly and writes down when it held it.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

from redis import Redis

from backstay.interop.n8n_wire import keys


class Nodes:
    """The Redis nodes of one execution of a workflow."""

    def __init__(self, url: str, *, execution_id: str = "1", workflow_id: str = "wf", workflow_name: str = "A") -> None:
        make = cast("Callable[..., Redis]", Redis.from_url)  # pyright: ignore[reportUnknownMemberType] # redis-py has no type for it
        self.redis = make(url, decode_responses=True)
        self.execution_id = execution_id
        self.workflow_id = workflow_id
        self.workflow_name = workflow_name

    def get(self, key: str) -> str | None:
        return cast("str | None", self.redis.get(key))

    def incr(self, key: str, ttl: int) -> int:
        """Send the two commands of the node. A crash between them leaves a counter that never expires."""
        count = int(self.redis.incr(key))
        self.redis.expire(key, ttl)
        return count

    def write_identity(self, scope: str, lock_id: str, ttl: int) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        values = (lock_id, self.workflow_id, self.workflow_name, self.execution_id, now)
        key = keys.meta_key(scope)
        self.redis.set(key, json.dumps(dict(zip(keys.IDENTITY, values, strict=True))))
        self.redis.expire(key, ttl)

    def try_acquire(self, scope: str, ttl: int = keys.TTL_SECONDS) -> str | None:
        """Return a new lock_id, or None if the lock is held."""
        key = keys.lock_key(scope)
        if self.get(key) is not None or self.incr(key, ttl) != 1:
            return None
        lock_id = str(uuid.uuid4())
        self.write_identity(scope, lock_id, ttl)
        return lock_id

    def acquire(self, scope: str, ttl: int = keys.TTL_SECONDS, wait: float = 60, poll: float = 1.0) -> str:
        until = time.monotonic() + wait
        while (lock_id := self.try_acquire(scope, ttl)) is None:
            if time.monotonic() > until:
                raise TimeoutError(scope)
            time.sleep(poll)
        return lock_id

    def release(self, scope: str, lock_id: str) -> bool:
        """Release the lock. Returns True if it was not held; raises ValueError if another lock_id holds it."""
        meta = self.get(keys.meta_key(scope))
        if meta is None:
            return True
        if json.loads(meta)["lock_id"] != lock_id:
            raise ValueError(f"LOGIC ERROR: {meta}")
        self.delete(scope)
        return False

    def delete(self, scope: str) -> None:
        """Delete the identity first: while the counter is set, no other execution writes an identity that this would
        delete.
        """
        self.redis.delete(keys.meta_key(scope))
        self.redis.delete(keys.lock_key(scope))

    def hit(self, scope: str, window: int, now_ms: int) -> int:
        """Count a hit in the bucket of this host's time, and return the count."""
        return self.incr(keys.limit_key(scope, keys.limit_bucket(now_ms, window)), window)


def main(url: str, scope: str, path: str, rounds: int, hold: float, poll: float) -> None:
    """Acquire the lock `rounds` times, and append `begin end` of each hold to a file, in ns of the monotonic clock."""
    nodes = Nodes(url, execution_id=str(uuid.uuid4()))
    with open(path, "a", encoding="ascii") as journal:  # noqa: PTH123 - append, line by line
        for _ in range(rounds):
            lock_id = nodes.acquire(scope, poll=poll)
            begin = time.monotonic_ns()
            time.sleep(hold)
            end = time.monotonic_ns()
            nodes.release(scope, lock_id)
            journal.write(f"{begin} {end}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6]))
