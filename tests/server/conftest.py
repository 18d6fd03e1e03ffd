"""Running servers for tests: `site` on SQLite, `any_site` on each engine in turn."""

from __future__ import annotations

import pytest

from support.server.site import serving


@pytest.fixture
def site(tmp_path):
    with serving(f"sqlite:///{tmp_path / 'backstay.db'}?synchronous=normal") as running:
        yield running


@pytest.fixture
def any_site(engine_url, namespace):
    with serving(engine_url, namespace=namespace) as running:
        yield running
