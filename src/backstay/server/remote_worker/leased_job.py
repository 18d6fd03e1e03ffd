"""One claimed job of an HTTP worker: its lease, and the requests that the worker sends for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from backstay.engine.base import Micros, steady
from backstay.engine.jitter import RANDOM
from backstay.errors import EngineUnavailable
from backstay.server.remote_worker.client import RequestRefused, ServerClient, encode_segment

#: The largest number of log lines in one request (the server's API calls them chunks).
BATCH = 1000
#: Seconds for which a report, a log batch or an artifact is sent again while the server is unavailable.
RETRY_SECONDS = 120.0
#: Seconds before the first retry, and the longest time between retries.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0


class LeaseRevoked(Exception):
    """The lease is no longer current: the server refuses all further requests for the job."""


class LeasedJob:
    """A job that this worker has claimed over HTTP. `lost` is set once the server reports that the worker no longer
    holds the job's lease.
    """

    def __init__(self, client: ServerClient, handout: dict[str, Any]) -> None:
        self._client = client
        self.job: dict[str, Any] = handout["job"]
        self.lease: str = handout["lease"]["lease_id"]
        self.ttl: float = handout["lease"]["ttl_ms"] / 1000
        #: Counted from 1, as everywhere but in the protocol.
        self.attempt: int = self.job["attempt"] + 1
        #: Seconds that the attempt may take; 0: unlimited.
        self.timeout: float = self.job["timeout_ms"] / 1000
        self._path = f"/api/jobs/{encode_segment(self.lease)}"
        self._sent = 0
        self.progress: float | None = None
        self.cancelled = self.lost = False

    async def send_log(self, lines: Sequence[tuple[Micros, str, str]]) -> None:
        """Send log lines in order, with retries. They are numbered, so the server stores a repeated line once."""
        for first in range(0, len(lines), BATCH):
            batch = lines[first : first + BATCH]
            chunks = [
                {"sequence": self._sent + n, "timestamp_ms": at // 1000, "stream": stream, "data": data}
                for n, (at, stream, data) in enumerate(batch)
            ]
            await self._post_with_retry("logs", {"chunks": chunks})
            self._sent += len(batch)

    async def finish(self, verb: str, body: dict[str, Any]) -> None:
        """Report the outcome (`complete`, `fail` or `release`), with retries. Raises LeaseRevoked."""
        await self._post_with_retry(verb, body)

    async def put_artifact(self, name: str, raw: bytes) -> None:
        """Upload an artifact, with retries. Raises LeaseRevoked."""
        await self._retry(lambda: self._client.put(f"{self._path}/artifacts/{encode_segment(name)}", raw))

    async def heartbeat(self) -> None:
        """Renew the lease and send the progress. Sets `cancelled` if the job should stop. Raises LeaseRevoked."""
        answer = await self._post("heartbeat", {"progress": self.progress})
        self.cancelled = self.cancelled or bool(answer["cancelled"])

    async def _post(self, verb: str, body: Any) -> Any:
        return await self._await_reply(self._client.post(f"{self._path}/{verb}", body))

    async def _await_reply(self, request: Awaitable[Any]) -> Any:
        try:
            return await request
        except RequestRefused as error:
            if error.status == 409:  # noqa: PLR2004 - the lease is not current
                self.lost = True
                raise LeaseRevoked from None
            raise

    async def _post_with_retry(self, verb: str, body: Any) -> None:
        await self._retry(lambda: self._client.post(f"{self._path}/{verb}", body))

    async def _retry(self, request: Callable[[], Awaitable[Any]]) -> None:
        """Repeat a request with backoff while the server is unavailable, for up to `RETRY_SECONDS` seconds."""
        began, pause = steady(), FIRST_PAUSE
        while True:
            try:
                await self._await_reply(request())
                return
            except (EngineUnavailable, RequestRefused) as error:
                is_transient = not isinstance(error, RequestRefused) or error.status in (408, 429, 500, 502, 503, 504)
                if not is_transient or self.lost or steady() - began > RETRY_SECONDS:
                    raise
                await asyncio.sleep(RANDOM.uniform(pause / 2, pause))
                pause = min(pause * 2, LONGEST_PAUSE)
