"""Renew leases. Only the worker that holds a lease can renew it; any other caller gets the verdict "lost"."""

from __future__ import annotations

from collections.abc import Sequence

from backstay.engine.base import Micros
from backstay.job.exchange import Renewal, RenewalVerdict
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import CANCEL_REQUESTED
from backstay.job.stores.sqlite.statements import load

RENEW = load("renew")


def renew(changes: Changes, worker: str, lease: Micros, leases: Sequence[Renewal], ids: str) -> list[RenewalVerdict]:
    found = {row[0]: row for row in changes.db.execute(RENEW["find_running"], (changes.space, ids))}
    verdicts: list[RenewalVerdict] = []
    kept: list[tuple[Micros, float, int]] = []
    for renewal in leases:
        row = found.get(renewal.job)
        if row is None or row[2] != renewal.fence or row[3] != worker:
            verdicts.append("lost")
            continue
        kept.append((changes.now + lease, renewal.progress, row[1]))
        verdicts.append("cancelled" if row[4] & CANCEL_REQUESTED else "ok")
    changes.db.executemany(RENEW["renew"], kept)
    return verdicts
