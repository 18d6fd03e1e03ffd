"""Fixtures: one Chromium for all dashboard tests, and a `backstay serve` process with a worker."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest
from browser import Browser, chromium
from served import serve

from backstay.server.routes import dashboard
from support.programs import programs


def needed(found, reason):
    if not found:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    needed(chromium(), "no Chromium on PATH")
    needed(dashboard.load(), "the dashboard is not built: make web")
    running = Browser(chromium(), tmp_path_factory.mktemp("chromium"))
    yield running
    running.close()


@pytest.fixture
def shots(tmp_path):
    """The folder for screenshots: BACKSTAY_SCREENSHOTS, or a temporary one."""
    folder = Path(os.environ.get("BACKSTAY_SCREENSHOTS") or tmp_path)
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def start():
    with programs() as starter:
        yield starter


@pytest.fixture(scope="session")
def at(start, tmp_path_factory):
    return serve(start, tmp_path_factory.mktemp("served"))


@pytest.fixture
def api(at):
    with httpx.Client(base_url=at, timeout=30) as client:
        yield client


@pytest.fixture
def open_page(browser):
    """Opens pages, and checks at the end that none logged an error or sent a request to another origin."""
    opened = []

    def open_(url, **options):
        page = browser.page(**options)
        opened.append((page, url.partition("#")[0].rstrip("/")))
        page.open(url)
        return page

    yield open_
    for page, home in opened:
        page.close()
        assert page.errors == []
        assert page.requests
        assert [one["url"] for one in page.requests if not one["url"].startswith(f"{home}/")] == []
