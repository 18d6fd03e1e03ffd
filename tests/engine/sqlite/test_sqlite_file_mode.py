"""The files of a SQLite database are private, unless `file_mode=` shares them with a group."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

import backstay.sync
from backstay import ConfigError, EngineUnavailable
from backstay.engine.sqlite.file_mode import create_database, open_beside

SUFFIXES = ("", "-wal", "-shm", "-queue")
#: A user and a group that own nothing here.
STRANGER = 54321

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")


@pytest.fixture(params=[0o022, 0o000, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


def modes_while_open(url, path):
    """Use the database and return the modes of its files, of which `-wal` and `-shm` exist only while it is open."""
    with backstay.sync.Backstay(url) as stay, stay.lock("x"):
        return {suffix: mode_of(f"{path}{suffix}") for suffix in SUFFIXES}


@pytest.mark.usefixtures("umask")
def test_new_files_are_private_whatever_the_umask(tmp_path):
    path = tmp_path / "a.db"
    assert modes_while_open(f"sqlite:///{path}", path) == dict.fromkeys(SUFFIXES, 0o600)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("mode", [0o660, 0o640, 0o666])
def test_file_mode_gives_all_new_files_that_mode(tmp_path, mode):
    path = tmp_path / "a.db"
    assert modes_while_open(f"sqlite:///{path}?file_mode={mode:o}", path) == dict.fromkeys(SUFFIXES, mode)


def test_an_existing_file_keeps_its_mode_and_gives_it_to_the_files_beside_it(tmp_path):
    path = tmp_path / "a.db"
    path.touch()
    path.chmod(0o640)
    assert modes_while_open(f"sqlite:///{path}", path) == dict.fromkeys(SUFFIXES, 0o640)


def test_a_link_to_a_new_file_makes_a_private_file(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    with backstay.sync.Backstay(f"sqlite:///{tmp_path}/link.db") as stay, stay.lock("x"):
        assert mode_of(tmp_path / "real.db") == 0o600


def test_processes_that_create_the_file_together_find_one_mode(tmp_path):
    path, modes = tmp_path / "a.db", []
    threads = [
        threading.Thread(target=lambda: modes.append(modes_while_open(f"sqlite:///{path}", path))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert modes == [dict.fromkeys(SUFFIXES, 0o600)] * 4


def test_creating_the_file_keeps_the_locks_of_another_connection(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    others = []

    def interleave(call):
        """Let another connection of this process begin a transaction as soon as the file has its name."""

        def wrapped(*args):
            call(*args)
            if path.exists() and not others:
                others.append(sqlite3.connect(path, isolation_level=None))
                others[0].execute("BEGIN EXCLUSIVE")

        return wrapped

    monkeypatch.setattr(os, "fchmod", interleave(os.fchmod))
    monkeypatch.setattr(os, "link", interleave(os.link))
    create_database(str(path), 0o600)
    with closing(others[0]):
        script = f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0).execute('BEGIN EXCLUSIVE')"
        stranger = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "database is locked" in stranger.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


@pytest.mark.parametrize("given", ["7", "777", "rw", "066", "-660"])
def test_a_file_mode_that_is_none_is_refused(tmp_path, given):
    with pytest.raises(ConfigError, match="file_mode"):
        backstay.sync.Backstay(f"sqlite:///{tmp_path}/a.db?file_mode={given}&timeout=1").open()


def as_stranger(act, *, groups=()):
    """Run `act` in a child process of another user. Returns what it returns, or the name and message of its error."""
    read, write = os.pipe()
    if not os.fork():
        try:
            os.setgroups(list(groups))
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            try:
                said = str(act())
            except BaseException as error:  # noqa: BLE001 - the parent asserts what it is
                said = f"{type(error).__name__}: {error}"
            os.write(write, said.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as said:
        return said.read()


def lock_once(url):
    with backstay.sync.Backstay(url) as stay, stay.lock("x", wait=5):
        return "locked"


@pytest.fixture
def folder(monkeypatch):
    """A folder for users of one group, and the working directory. Not `tmp_path`, which other users cannot reach."""
    with tempfile.TemporaryDirectory() as made:
        monkeypatch.chdir(made)
        os.chown(made, 0, STRANGER)
        Path(made).chmod(0o2770)
        yield Path(made)
        monkeypatch.undo()


@needs_root
def test_another_user_reads_nothing_of_a_private_file(folder):
    lock_once("sqlite:///a.db")
    folder.chmod(0o777)
    for suffix in ("", "-queue"):
        assert as_stranger(Path(f"a.db{suffix}").read_bytes).startswith("PermissionError")
    assert as_stranger(lambda: lock_once("sqlite:///a.db")).startswith("EngineUnavailable: a.db")


@needs_root
@pytest.mark.usefixtures("folder")
def test_users_of_one_group_share_a_file_with_file_mode():
    url = "sqlite:///a.db?file_mode=660"
    before = os.umask(0o077)
    try:
        assert lock_once(url) == "locked"
        assert as_stranger(lambda: lock_once(url)) == "locked"
        assert lock_once(url) == "locked"
    finally:
        os.umask(before)


@needs_root
@pytest.mark.usefixtures("folder")
def test_a_queue_file_that_only_another_user_can_open_is_our_error():
    url = "sqlite:///a.db?file_mode=660"
    lock_once(url)
    Path("a.db-queue").chmod(0o600)
    said = as_stranger(lambda: lock_once(url))
    assert said.startswith("EngineUnavailable: a.db-queue: permission denied")
    assert "file_mode" in said


@needs_root
def test_root_gives_the_queue_file_to_the_user_of_the_database(folder):
    (folder / "a.db").touch(0o600)
    os.chown(folder / "a.db", STRANGER, STRANGER)
    lock_once("sqlite:///a.db")
    assert (folder / "a.db-queue").stat().st_uid == STRANGER
    assert as_stranger(lambda: lock_once("sqlite:///a.db")) == "locked"


def test_a_queue_file_without_a_database_is_our_error(tmp_path):
    with pytest.raises(EngineUnavailable, match="cannot be opened"):
        open_beside(str(tmp_path / "missing.db"), "-queue")
