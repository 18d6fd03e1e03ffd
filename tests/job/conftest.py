"""The URL of every job store."""

from __future__ import annotations

import pytest

from support.app import KINDS, url_of


@pytest.fixture(params=KINDS)
def url(request):
    """The URL of a job store; the test runs once for each."""
    return url_of(request.param, request)
