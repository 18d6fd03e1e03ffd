"""PostgreSQL data directories. initdb runs once per process, and each server gets a copy, which is much faster than
another initdb.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import IO

#: PostgreSQL refuses to run as root. When the tests run as root, the first of these users that exists runs it.
SERVER_USERS = ("postgres", "nobody")
#: The database that tests use.
DATABASE = "backstay"


def server_user() -> str:
    """Return the user that runs the server; empty: the current user."""
    if os.geteuid() != 0:
        return ""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in SERVER_USERS if name in known)


def run_as_server_user(command: list[str], log: IO[bytes], folder: Path) -> subprocess.Popen[bytes]:
    """Start a program as `server_user()`, with `folder` as its working directory."""
    if user := server_user():
        group = pwd.getpwnam(user).pw_gid
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, user=user, group=group, extra_groups=[])
    return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)


def create_data_directory(folder: Path, programs: Path) -> None:
    """Create the data directory of a new server in `folder`, owned by `server_user()`."""
    if user := server_user():
        shutil.chown(folder, user)
    _do(["cp", "-R", "-p", str(_template(programs, os.getpid()) / "data"), str(folder)], folder)


@cache
def _template(programs: Path, pid: int) -> Path:
    """Create the data directory that `create_data_directory` copies. Each test process has its own one, because
    concurrent processes may differ in user, PostgreSQL version and lifetime.
    """
    folder = Path(tempfile.mkdtemp(prefix="backstay-postgres-template-"))
    atexit.register(_remove, folder, pid)
    if user := server_user():
        shutil.chown(folder, user)
    data = str(folder / "data")
    command = [str(programs / "initdb"), "-D", data, "-U", DATABASE, "-A", "trust", "-E", "UTF8"]
    _do([*command, "--locale=C", "--no-sync"], folder)
    # Single-user mode: the server runs one statement from its standard input and exits.
    alone = f"exec '{programs / 'postgres'}' --single -F -D '{data}' postgres"
    _do(["sh", "-c", f"echo 'CREATE DATABASE {DATABASE}' | {alone}"], folder)
    return folder


def _do(command: list[str], folder: Path) -> None:
    with (folder / "log").open("ab") as log:
        if run_as_server_user(command, log, folder).wait():
            said = (folder / "log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{Path(command[0]).name} failed:\n{said}")


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child must not delete its parent's folder
        shutil.rmtree(folder, ignore_errors=True)
