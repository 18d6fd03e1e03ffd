"""A payment that is booked exactly once, by four layers. Each covers a case that the one before does not.

1. Idempotency: a repeated payment is replayed, not executed. Not covered: a process that is paused for longer than its
   lease and then continues.
2. A lock: one holder per account at a time, also among other functions. Not covered: a holder that is paused for longer
   than its lease.
3. A UNIQUE constraint: the database itself rejects a second entry.
4. A handler that may run twice: in one transaction, it checks whether the payment was processed, books it, and marks it
   as processed.
"""

import sqlite3
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from backstay.sync import Backstay

SCHEMA = """
CREATE TABLE IF NOT EXISTS ledger (payment_id TEXT NOT NULL UNIQUE, account TEXT NOT NULL, amount INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS processed (payment_id TEXT PRIMARY KEY);
"""


def make_pay(stay: Backstay, shop: Path, *, lease: float = 30) -> Callable[..., dict[str, int]]:
    @stay.idempotent("pay:{payment_id}", fingerprint=["account", "amount"], lease=lease)  # 1
    def pay(payment_id: str, account: str, amount: int) -> dict[str, int]:
        with stay.lock(f"account:{account}", ttl=lease):  # 2
            return handle(shop, payment_id, account, amount)

    return pay


def handle(shop: Path, payment_id: str, account: str, amount: int) -> dict[str, int]:
    with closing(sqlite3.connect(shop)) as db:
        db.executescript(SCHEMA)
        with db:  # 4: one transaction
            db.execute("BEGIN IMMEDIATE")
            if not is_processed(db, payment_id):
                db.execute("INSERT INTO ledger VALUES (?, ?, ?)", (payment_id, account, amount))  # 3
                db.execute("INSERT INTO processed VALUES (?)", (payment_id,))
        return {"paid": amount}


def is_processed(db: sqlite3.Connection, payment_id: str) -> bool:
    return db.execute("SELECT 1 FROM processed WHERE payment_id = ?", (payment_id,)).fetchone() is not None


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Backstay(f"sqlite:///{folder}/backstay.db") as stay:
        shop = Path(folder) / "shop.db"
        pay = make_pay(stay, shop)
        with ThreadPoolExecutor(5) as pool:
            receipts = list(pool.map(lambda _: pay("p-1", "ada", 5), range(5)))
        with closing(sqlite3.connect(shop)) as db:
            (entries,) = db.execute("SELECT count(*) FROM ledger").fetchone()
        print(f"{len(receipts)} calls, {entries} entry in the ledger, every receipt is {receipts[0]}")
        assert receipts == [{"paid": 5}] * 5
        assert entries == 1


if __name__ == "__main__":
    main()
