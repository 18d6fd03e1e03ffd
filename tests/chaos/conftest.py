"""What chaos tests share: a proxy before the shared server, ways to look past it, and forms to aim faults at."""

import hashlib

import pytest

import holdfast.sync
from holdfast.engine.redis import scripts
from holdfast.engine.redis.address import parse
from holdfast.engine.redis.blocking_link import BlockingLink
from holdfast.engine.redis.link import pack
from holdfast.gate.machine import GATE, Acquire, Release, Renew, Withdraw
from holdfast.testing.proxy import FaultProxy


@pytest.fixture
def proxy(holdfast_redis):
    with FaultProxy(holdfast_redis.port) as proxy:
        yield proxy


@pytest.fixture
def name(request):
    """A lock of this test's own."""
    return "chaos-" + hashlib.sha1(request.node.nodeid.encode(), usedforsecurity=False).hexdigest()[:12]


@pytest.fixture
def truth(holdfast_redis):
    """A Holdfast with a clear line to the server."""
    with holdfast.sync.Holdfast(holdfast_redis.url) as hf:
        yield hf


class Wire:
    """How each request looks on its way. The server knows the scripts, so their hashes travel."""

    def __init__(self, url):
        link = BlockingLink(parse(url), "wire", None)
        for command in (Acquire, Renew, Release, Withdraw):
            link.call_many([pack("SCRIPT", "LOAD", GATE.script(command))])
            setattr(self, command.__name__.lower(), scripts.of_command(GATE, command).sha.encode())
        link.close()


@pytest.fixture
def wire(holdfast_redis):
    return Wire(holdfast_redis.url)


@pytest.fixture
def wire_of():
    """The same for a server of the test's own."""
    return Wire
