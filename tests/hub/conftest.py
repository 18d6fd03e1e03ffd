from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"
