"""A command line against each engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from support.command_line import Cli


@pytest.fixture
def sqlite_cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(f"sqlite:///{tmp_path / 'backstay.db'}", "cli", tmp_path)
    cli.backstay  # noqa: B018 - creates the file
    yield cli
    cli.close()


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def cli(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cli]:
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_cli")
        return
    server = request.getfixturevalue(f"backstay_{request.param}")
    cli = Cli(server.url, f"cli-{uuid4().hex}", tmp_path)
    yield cli
    cli.close()
