"""The server loads and watches a directory of workflow files."""

from __future__ import annotations

import asyncio
import os

import pytest

from backstay import Backstay
from backstay.server.workflow_folder import WorkflowFolder
from backstay.workflow.document.nodes import LARGEST

GOOD = "name: good\njobs: {a: {run: echo}}\n"


def scan_folder(path, times=1):
    """Scan the folder `times` times; return the names of the stored workflows."""

    async def scan_and_list():
        async with Backstay("memory://") as stay:
            folder = WorkflowFolder(stay._core, path)
            for _ in range(times):
                await folder.scan()
            return [one.name for one in await stay.workflows.list()]

    return asyncio.run(scan_and_list())


@pytest.fixture
def error_logs(caplog):
    return lambda: [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def test_every_file_that_cannot_be_stored_is_logged_once(tmp_path, error_logs):
    (tmp_path / "good.yml").write_text(GOOD)
    (tmp_path / "bad.yml").write_text("jobs:\n  a: {rnu: x}\n")
    (tmp_path / "gone.yml").symlink_to(tmp_path / "nowhere")
    assert scan_folder(tmp_path, times=3) == ["good"]
    bad, gone = error_logs()
    assert "bad.yml:2:" in bad
    assert gone == f"{tmp_path / 'gone.yml'} cannot be read: No such file or directory"


def test_a_broken_link_is_followed_once_its_target_exists(tmp_path, error_logs):
    (tmp_path / "late.yml").symlink_to(tmp_path / "there")

    async def scan_and_list():
        async with Backstay("memory://") as stay:
            folder = WorkflowFolder(stay._core, tmp_path)
            await folder.scan()
            (tmp_path / "there").write_text(GOOD)
            await folder.scan()
            return [one.name for one in await stay.workflows.list()]

    assert asyncio.run(scan_and_list()) == ["good"]
    assert len(error_logs()) == 1


def test_a_file_that_is_too_large_is_logged_with_the_limit(tmp_path, error_logs):
    (tmp_path / "large.yml").write_text(GOOD + "#" * LARGEST)
    (tmp_path / "huge.yml").write_text(GOOD + "#" * 8 * LARGEST)
    assert scan_folder(tmp_path) == []
    assert len(error_logs()) == 2
    assert all(f"at most {LARGEST}" in message for message in error_logs())


def test_directories_pipes_and_hidden_files_are_ignored(tmp_path, error_logs):
    (tmp_path / "folder.yml").mkdir()
    os.mkfifo(tmp_path / "pipe.yml")
    (tmp_path / ".hidden.yml").write_text("no")
    (tmp_path / "notes.txt").write_text("no")
    assert scan_folder(tmp_path) == []
    assert error_logs() == []
