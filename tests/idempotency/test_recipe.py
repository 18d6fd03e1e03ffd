"""The documented exactly-once recipe has one effect, whichever line its process is killed at, on every engine."""

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


def pay(url, namespace, accounts, kill_before):
    command = [sys.executable, str(PROGRAM), url, namespace, str(accounts), str(kill_before)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def entries(accounts):
    with closing(sqlite3.connect(accounts)) as db:
        return [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("ledger", "processed")]  # noqa: S608 - fixed names


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_recipe_killed_at_any_line_has_one_effect(shared_url, namespace, tmp_path):
    def place(number):
        return shared_url, f"{namespace}-{number}", tmp_path / f"accounts-{number}.db"

    def kill_and_retry(number):
        killed = pay(*place(number), number)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        again = pay(*place(number), 0)  # takes over when the leases of the killed process have expired
        assert again.returncode == 0, again.stderr
        return number, entries(place(number)[-1])

    whole = pay(*place("whole"), 0)
    assert whole.returncode == 0, whole.stderr
    lines = int(whole.stdout)
    assert lines >= 10
    assert pay(*place("whole"), 0).stdout == "0\n"  # replayed without running a line
    assert entries(place("whole")[-1]) == [1, 1]
    with ThreadPoolExecutor(4) as pool:
        for number, found in pool.map(kill_and_retry, range(1, lines + 1)):
            assert found == [1, 1], number
