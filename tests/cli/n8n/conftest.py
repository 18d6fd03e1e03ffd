"""Workspaces for tests of `backstay n8n`."""

from __future__ import annotations

import shutil

import pytest

from support.n8n.commands import Commands


@pytest.fixture(scope="session")
def workspaces(tmp_path_factory):
    """Two workspaces, of which tests use copies: without a workflow, and with one workflow and all primitives."""
    empty, full = (Commands(tmp_path_factory.mktemp(name)) for name in ("empty", "full"))
    for commands in (empty, full):
        commands.do("init")
    full.put("nightly")
    full.do("create-lock", "--include-error-handler", "--include-rate-limit")
    return empty.root, full.root


@pytest.fixture
def empty(workspaces, tmp_path):
    """A workspace without a workflow."""
    return Commands(shutil.copytree(workspaces[0], tmp_path / "flows"))


@pytest.fixture
def commands(workspaces, tmp_path):
    """A workspace with a workflow and all primitives."""
    return Commands(shutil.copytree(workspaces[1], tmp_path / "flows"))
