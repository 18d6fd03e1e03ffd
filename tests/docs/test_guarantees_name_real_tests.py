"""Every test that README and docs/ name exists."""

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
NAMED = re.compile(r"`([\w./-]+\.py)::(?:\w+::)?(test_\w+)`")
TESTS = sorted({named for page in PAGES for named in NAMED.findall(page.read_text(encoding="utf-8"))})


def functions(path):
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


@pytest.mark.parametrize(("path", "test"), TESTS, ids=[test for _, test in TESTS])
def test_a_named_test_exists(path, test):
    assert (TOP / path).is_file()
    assert test in functions(TOP / path)


@pytest.mark.parametrize(("page", "tables"), [("README.md", 1), ("docs/guarantees.md", 9)])
def test_every_promise_names_a_test(page, tables):
    """Every row of the tables of guarantees names a test."""
    text = (TOP / page).read_text(encoding="utf-8")
    found = re.findall(r"^\|.*\| test \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(found) == tables
    assert [row for table in found for row in table.splitlines() if not NAMED.search(row)] == []


def test_named_claims_belong_to_a_suite_that_is_run():
    """A claim is run only through a suite, which a folder of tests inherits on every engine."""
    from backstay.testing.conformance import (
        CrashSuite,
        GateSuite,
        HubSuite,
        IdempotencyCrashSuite,
        IdempotencySuite,
        JobSuite,
        LimitSuite,
        LostHubSuite,
        RunSuite,
        WakingSuite,
    )

    claims = {test for path, test in TESTS if path.startswith("src/backstay/testing/conformance/")}
    assert claims
    suites = (
        GateSuite,
        CrashSuite,
        HubSuite,
        LimitSuite,
        IdempotencySuite,
        IdempotencyCrashSuite,
        JobSuite,
        RunSuite,
        WakingSuite,
        LostHubSuite,
    )
    assert {test for test in claims if not any(hasattr(suite, test) for suite in suites)} == set()
