"""`backstay doctor` against SQLite files, healthy and not, and the command itself."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from backstay.cli.commands import doctor as command
from backstay.doctor import finding
from backstay.doctor import sqlite as sqlite_doctor
from backstay.doctor.examine import examine
from backstay.sync import Backstay
from support.command_line import Cli
from support.doctor_report import findings_about, only_finding

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/cli.md").read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "backstay.db"
    with Backstay(f"sqlite:///{path}") as stay, stay.lock("x"):
        pass
    return path


def test_a_sound_database_file_is_reported_as_fit(file, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_doctor, "find_file_system", lambda _: "ext4")
    done = Cli(f"sqlite:///{file}", "doctor", tmp_path).call("doctor", "--strict")
    assert done.exit_code == 0, done.output
    assert {f.topic for f in examine(f"sqlite:///{file}").findings} == {
        "version",
        "file system",
        "file mode",
        "disk space",
        "durability",
        "file",
        "schema",
        "journal",
        "clock",
        "round trip",
    }


def test_a_file_that_other_users_can_open_is_a_warning(file):
    assert only_finding(examine(f"sqlite:///{file}"), "file mode").level == "ok"
    file.chmod(0o644)
    found = only_finding(examine(f"sqlite:///{file}"), "file mode")
    assert (found.level, found.what) == ("warning", "backstay.db has mode 644")
    assert f"chmod 600 {file}*" in found.advice
    file.with_name("backstay.db-queue").chmod(0o666)
    file.chmod(0o660)
    found = only_finding(examine(f"sqlite:///{file}?file_mode=660"), "file mode")
    assert (found.level, found.what) == ("warning", "backstay.db-queue has mode 666")


def test_doctor_does_not_create_a_missing_file(tmp_path):
    report = examine(f"sqlite:///{tmp_path}/new.db")
    assert only_finding(report, "file").level == "warning"
    assert list(tmp_path.iterdir()) == []


def test_doctor_does_not_change_a_foreign_database(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE invoice (id INTEGER)")
    db.close()
    before = path.read_bytes()
    report = examine(f"sqlite:///{path}")
    assert only_finding(report, "schema").level == "ok"
    assert only_finding(report, "journal").level == "warning"
    assert path.read_bytes() == before


def test_a_missing_folder_is_a_problem(tmp_path):
    assert only_finding(examine(f"sqlite:///{tmp_path}/missing/a.db"), "file").level == "problem"


def test_a_file_that_is_no_database_is_a_problem(tmp_path):
    (tmp_path / "a.db").write_text("hello" * 1000)
    assert only_finding(examine(f"sqlite:///{tmp_path}/a.db"), "file").level == "problem"


@pytest.mark.parametrize(
    ("synchronous", "expected"), [("extra", "ok"), ("full", "ok"), ("normal", "warning"), ("off", "problem")]
)
def test_each_synchronous_level_has_its_own_finding(file, synchronous, expected):
    assert only_finding(examine(f"sqlite:///{file}?synchronous={synchronous}"), "durability").level == expected


def test_a_newer_schema_is_a_problem(file):
    with sqlite3.connect(file) as db:
        db.execute("UPDATE backstay_meta SET value = 99 WHERE key = 'schema'")
    db.close()
    assert only_finding(examine(f"sqlite:///{file}"), "schema").level == "problem"


def test_a_file_locked_by_another_connection_is_a_problem(file):
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    try:
        (found,) = findings_about(examine(f"sqlite:///{file}?timeout=0.1"), "file")
    finally:
        db.close()
    assert found.level == "problem"
    assert "locked" in found.what


def test_a_clock_that_was_set_back_is_a_problem(file):
    assert only_finding(examine(f"sqlite:///{file}", clock=lambda: time.time() - 60), "clock").level == "problem"
    assert only_finding(examine(f"sqlite:///{file}", clock=lambda: time.time() + 60), "clock").level == "ok"


@pytest.fixture
def read_only_file(file):
    """The database file, made read-only: by permission bits, or for root (who ignores them) by a read-only mount."""
    folder = file.parent
    if os.geteuid():
        folder.chmod(0o555)
        file.chmod(0o444)
        yield file
        folder.chmod(0o755)
        return
    bind = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False)
    if bind.returncode:
        pytest.skip("root without the right to mount: nothing here can be made read-only")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield file
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def test_a_file_that_cannot_be_written_is_a_problem(read_only_file, tmp_path):
    done = Cli(f"sqlite:///{read_only_file}", "doctor", tmp_path).call("doctor")
    assert done.exit_code == 2, done.output
    assert "read-only" in done.stdout


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("ext4 /", "ok"),
        ("ext4 /|nfs4 {0}", "problem"),
        ("nfs4 /|ext4 {0}", "ok"),
        ("ext4 /|tmpfs {0}", "warning"),
        ("ext4 /|fuse.sshfs {0}", "problem"),
    ],
)
def test_a_network_file_system_is_a_problem(file, tmp_path, monkeypatch, mounts, expected):
    table = tmp_path / "mountinfo"
    pairs = [mount.split() for mount in mounts.format(file.parent).split("|")]
    table.write_text("".join(f"1 1 0:1 / {point} rw - {kind} src rw\n" for kind, point in pairs))
    monkeypatch.setattr(sqlite_doctor, "MOUNTS", table)
    assert only_finding(examine(f"sqlite:///{file}"), "file system").level == expected


@pytest.mark.parametrize(("free", "expected"), [(2**40, "ok"), (50 * 2**20, "warning"), (2**20, "problem")])
def test_low_disk_space_is_reported_by_its_amount(file, monkeypatch, free, expected):
    monkeypatch.setattr(sqlite_doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
    assert only_finding(examine(f"sqlite:///{file}"), "disk space").level == expected


def test_a_slow_round_trip_is_a_warning(file, monkeypatch):
    assert only_finding(examine(f"sqlite:///{file}"), "round trip").level == "ok"
    monkeypatch.setattr(finding, "SLOW_TRIP", 0.0)
    assert only_finding(examine(f"sqlite:///{file}"), "round trip").level == "warning"


def test_the_memory_engine_is_a_warning():
    assert examine("memory://").verdict == "warning"


def test_the_url_argument_overrides_the_url_option(file, tmp_path):
    done = Cli("redis://127.0.0.1:1/0", "doctor", tmp_path).call("doctor", f"sqlite:///{file}", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["engine"] == f"sqlite:///{file}"


def test_an_invalid_url_is_wrong_usage(tmp_path):
    done = Cli("memory://", "doctor", tmp_path).call("doctor", "gopher://:hunter2@x")
    assert done.exit_code == 2
    assert "hunter2" not in done.output
    assert not done.stdout


def test_doctor_json_has_the_fields_of_the_reference(file):
    report = examine(f"sqlite:///{file}")
    printed = command.as_dict(report)
    section = PAGE[PAGE.index("## `backstay doctor") :]
    shown = json.loads(re.search(r"```json\n(.*?)```", section, re.DOTALL)[1])
    assert list(shown) == list(printed)
    assert list(shown["findings"][0]) == list(printed["findings"][0])
