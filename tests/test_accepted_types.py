"""The types of clients and pools: a type checker tells valid from invalid ones without importing the drivers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("accepted_types.py")


@pytest.mark.slow
def test_a_type_checker_accepts_only_supported_clients_and_pools(tmp_path):
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", f"--cache-dir={tmp_path}", "--follow-imports=silent", PROGRAM],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found = {int(line) for line in re.findall(r"accepted_types\.py:(\d+): error", done.stdout)}
    wrong = {n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, done.stdout + done.stderr
