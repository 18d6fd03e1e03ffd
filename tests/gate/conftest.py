"""The fixture `gate`: one gate on each engine, with a clock that the test sets."""

from __future__ import annotations

import pytest
from clocked_gate import Clocked


@pytest.fixture
def gate(engine_url, namespace):
    clocked = Clocked(engine_url, namespace)
    yield clocked
    clocked.engine.close_blocking()
