"""Fixtures for all tests: an engine's URL, a unique namespace, and Backstays that are closed after the test."""

from __future__ import annotations

import secrets
import signal
import uuid
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from backstay import sync

# No deadline per example: its duration depends on how busy the machine is.
settings.register_profile("backstay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("backstay")

REDIS = pytest.param("redis", marks=pytest.mark.redis)
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


#: The number of reruns of a failed test with the mark `timed`. A busy machine makes such a test fail now and then; code
#: that is too slow fails every time. The summary reports each failed try.
TRIES = 4


#: The approximate duration of a test in seconds, by its marks.
COSTS = {"race": 10.0, "chaos": 2.0, "slow": 2.0}


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=TRIES, reruns_delay=1))
    if hasattr(config, "workerinput"):
        _longest_first(items)


def _longest_first(items):
    """Sort the test files by duration, longest first. With several test processes, each of which runs one file at a
    time, a long file at the end would keep one process busy while the others are idle.
    """
    costs = Counter()
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        costs[item.path] += max((cost for name, cost in COSTS.items() if name in marks), default=0.1)
    items.sort(key=lambda item: (-costs[item.path], item.path))


def pytest_configure(config):
    """Restore the default signal handlers. A shell starts background processes with these signals ignored, and every
    program that a test starts would inherit that.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _url(kind, request):
    if kind == "memory":
        return "memory://"
    if kind == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'backstay.db'}?synchronous=normal"
    return request.getfixturevalue(f"backstay_{kind}").url


@pytest.fixture(params=["memory", "sqlite", REDIS, POSTGRES])
def engine_url(request):
    """The URL of an engine; the test runs once for each engine."""
    return _url(request.param, request)


@pytest.fixture(params=["sqlite", REDIS, POSTGRES])
def shared_url(request):
    """Like `engine_url`, without `memory://`: two Backstays with this URL share their data."""
    return _url(request.param, request)


@pytest.fixture
def namespace():
    """A unique namespace, so that tests may share one server."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def unique():
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def connect(namespace):
    """Create blocking Backstays and close them after the test: `connect(url)`, `connect(engine=engine)`."""
    made = []

    def make(url=None, **options):
        backstay = sync.Backstay(url, namespace=namespace, **options)
        made.append(backstay)
        return backstay

    yield make
    for backstay in made:
        backstay.close()
        backstay.engine.close_blocking()


def pytest_terminal_summary(terminalreporter):
    """Print the measurements of all tests, also of other test processes: `record_property("measured", …)`."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    found = [text for report in reports for name, text in getattr(report, "user_properties", ()) if name == "measured"]
    if found:
        terminalreporter.section("measured")
        for text in dict.fromkeys(found):
            terminalreporter.write_line(text)
