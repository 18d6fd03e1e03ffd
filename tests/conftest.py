"""What every test may ask for: an engine's URL, a namespace nobody else uses, and Backstays that are closed again."""

from __future__ import annotations

import secrets
import signal
import uuid
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from backstay import sync

# How long an example takes says something about the machine, not about the claim.
settings.register_profile("backstay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("backstay")

REDIS = pytest.param("redis", marks=pytest.mark.redis)
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


#: How often a promise about time is tried again. A machine that is busy with others is slow now and then; what is too
#: slow by itself is so each time. Each failed try is told of in the summary.
TRIES = 4


#: What a test takes, about, in seconds, by its marks.
COSTS = {"race": 10.0, "chaos": 2.0, "slow": 2.0}


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=TRIES, reruns_delay=1))
    if hasattr(config, "workerinput"):
        _longest_first(items)


def _longest_first(items):
    """Among several processes, each of which takes a file at a time: a long one must not be the last."""
    costs = Counter()
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        costs[item.path] += max((cost for name, cost in COSTS.items() if name in marks), default=0.1)
    items.sort(key=lambda item: (-costs[item.path], item.path))


def pytest_configure(config):
    """What runs in the background is started with these ignored, and so would be every program that a test starts."""
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
    """The URL of every engine in turn."""
    return _url(request.param, request)


@pytest.fixture(params=["sqlite", REDIS, POSTGRES])
def shared_url(request):
    """The same without `memory://`: two Backstays on it meet."""
    return _url(request.param, request)


@pytest.fixture
def namespace():
    """Nobody else's, so that tests may share one server."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def unique():
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def connect(namespace):
    """Makes blocking Backstays, and closes them at the end: `connect(url)`, `connect(engine=engine)`."""
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
    """What tests have measured, also those that ran in other processes: `record_property("measured", …)`."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    found = [text for report in reports for name, text in getattr(report, "user_properties", ()) if name == "measured"]
    if found:
        terminalreporter.section("measured")
        for text in dict.fromkeys(found):
            terminalreporter.write_line(text)
