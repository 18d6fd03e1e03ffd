"""Approximately exactly once, as the docs show it: killed at every step, there is one effect."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killed_recipe.py")


def pay(url, shop, dies_before):
    command = [sys.executable, str(PROGRAM), url, str(shop), str(dies_before)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def entries(shop):
    with closing(sqlite3.connect(shop)) as db:
        return [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("ledger", "processed")]  # noqa: S608 - our own


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_at_every_step_the_recipe_has_one_effect(tmp_path):
    def place(number):
        return f"sqlite:///{tmp_path}/engine-{number}.db?synchronous=normal", tmp_path / f"shop-{number}.db"

    def die_and_come_again(number):
        url, shop = place(number)
        killed = pay(url, shop, number)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        again = pay(url, shop, 0)  # takes over when the dead one's leases have ended
        assert again.returncode == 0, again.stderr
        return number, entries(shop)

    url, shop = place("whole")
    lines = int(pay(url, shop, 0).stdout)
    assert lines >= 10
    assert pay(url, shop, 0).stdout == "0\n"  # answered without a line of it
    with ThreadPoolExecutor(4) as pool:
        for number, found in pool.map(die_and_come_again, range(1, lines + 1)):
            assert found == [1, 1], number
