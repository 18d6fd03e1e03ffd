"""A directory of workflows that a server loads and watches."""

from __future__ import annotations

import asyncio
import os

import pytest

from backstay import Backstay
from backstay.server.workflow_folder import Folder
from backstay.workflow.document.nodes import LARGEST

GOOD = "name: good\njobs: {a: {run: echo}}\n"


def looked(path, times=1):
    """What is stored after the folder was looked at."""

    async def whole():
        async with Backstay("memory://") as stay:
            folder = Folder(stay._core, path)
            for _ in range(times):
                await folder.look()
            return [one.name for one in await stay.workflows.list()]

    return asyncio.run(whole())


@pytest.fixture
def said(caplog):
    return lambda: [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def test_every_file_that_cannot_be_stored_is_told_of_once(tmp_path, said):
    (tmp_path / "good.yml").write_text(GOOD)
    (tmp_path / "bad.yml").write_text("jobs:\n  a: {rnu: x}\n")
    (tmp_path / "gone.yml").symlink_to(tmp_path / "nowhere")
    assert looked(tmp_path, times=3) == ["good"]
    bad, gone = said()
    assert "bad.yml:2:" in bad
    assert gone == f"{tmp_path / 'gone.yml'} cannot be read: No such file or directory"


def test_a_link_that_leads_somewhere_again_is_followed(tmp_path, said):
    (tmp_path / "late.yml").symlink_to(tmp_path / "there")

    async def whole():
        async with Backstay("memory://") as stay:
            folder = Folder(stay._core, tmp_path)
            await folder.look()
            (tmp_path / "there").write_text(GOOD)
            await folder.look()
            return [one.name for one in await stay.workflows.list()]

    assert asyncio.run(whole()) == ["good"]
    assert len(said()) == 1


def test_a_file_that_is_too_large_is_told_of_with_the_bound_that_counts(tmp_path, said):
    (tmp_path / "large.yml").write_text(GOOD + "#" * LARGEST)
    (tmp_path / "huge.yml").write_text(GOOD + "#" * 8 * LARGEST)
    assert looked(tmp_path) == []
    assert len(said()) == 2
    assert all(f"at most {LARGEST}" in message for message in said())


def test_what_is_no_file_is_left_alone(tmp_path, said):
    (tmp_path / "folder.yml").mkdir()
    os.mkfifo(tmp_path / "pipe.yml")
    (tmp_path / ".hidden.yml").write_text("no")
    (tmp_path / "notes.txt").write_text("no")
    assert looked(tmp_path) == []
    assert said() == []
