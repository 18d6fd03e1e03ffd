"""mypy and pyright check calls of a job against its function's signature."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import backstay

PROGRAM = Path(__file__).with_name("typed_jobs.py")
WRONG = {n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1) if line.endswith("# wrong")}
SOURCE = str(Path(backstay.__file__).parents[1])


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, **options)


@pytest.mark.slow
def test_mypy_checks_calls_against_a_jobs_signature(tmp_path):
    pytest.importorskip("mypy")
    done = run(
        sys.executable,
        "-m",
        "mypy",
        "--config-file=",
        f"--cache-dir={tmp_path}",
        "--follow-imports=silent",
        str(PROGRAM),
        env={"MYPYPATH": SOURCE, "PATH": ""},
    )
    found = {int(line) for line in re.findall(r"typed_jobs\.py:(\d+): error", done.stdout)}
    assert found == WRONG, done.stdout + done.stderr


@pytest.mark.slow
def test_pyright_checks_calls_against_a_jobs_signature(tmp_path):
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists() and shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [SOURCE], "pythonVersion": "3.11"}))
    shutil.copy(PROGRAM, tmp_path)
    done = run(
        str(pyright) if pyright.exists() else "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(tmp_path),
    )
    found = {
        one["range"]["start"]["line"] + 1
        for one in json.loads(done.stdout)["generalDiagnostics"]
        if one["severity"] == "error"
    }
    assert found == WRONG, done.stdout
