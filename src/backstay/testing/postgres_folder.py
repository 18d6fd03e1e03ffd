"""A PostgreSQL's folder of data, made once in a process and copied for each server: a copy takes no second."""

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

#: PostgreSQL refuses to run as root: then the first of these runs it.
NOBODIES = ("postgres", "nobody")
#: The only database there is, besides PostgreSQL's own.
DATABASE = "backstay"


def nobody() -> str:
    """Who runs the server; empty: ourselves."""
    if os.geteuid() != 0:
        return ""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in NOBODIES if name in known)


def run_as_nobody(command: list[str], log: IO[bytes], folder: Path) -> subprocess.Popen[bytes]:
    """Start a program that may write into `folder` alone."""
    if user := nobody():
        group = pwd.getpwnam(user).pw_gid
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, user=user, group=group, extra_groups=[])
    return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)


def fill(folder: Path, programs: Path) -> None:
    """Put a `data` into `folder`, which nobody else may write to."""
    if user := nobody():
        shutil.chown(folder, user)
    _do(["cp", "-R", "-p", str(_template(programs, os.getpid()) / "data"), str(folder)], folder)


@cache
def _template(programs: Path, pid: int) -> Path:
    """One for each process: those that run at the same time may differ in their user, their programs, their life."""
    folder = Path(tempfile.mkdtemp(prefix="backstay-postgres-template-"))
    atexit.register(_remove, folder, pid)
    if user := nobody():
        shutil.chown(folder, user)
    data = str(folder / "data")
    command = [str(programs / "initdb"), "-D", data, "-U", DATABASE, "-A", "trust", "-E", "UTF8"]
    _do([*command, "--locale=C", "--no-sync"], folder)
    # A server of its own for one statement: alone, over no connection, gone when the statement is done.
    alone = f"exec '{programs / 'postgres'}' --single -F -D '{data}' postgres"
    _do(["sh", "-c", f"echo 'CREATE DATABASE {DATABASE}' | {alone}"], folder)
    return folder


def _do(command: list[str], folder: Path) -> None:
    with (folder / "log").open("ab") as log:
        if run_as_nobody(command, log, folder).wait():
            said = (folder / "log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{Path(command[0]).name} failed:\n{said}")


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a fork that ends must not take it from its parent
        shutil.rmtree(folder, ignore_errors=True)
