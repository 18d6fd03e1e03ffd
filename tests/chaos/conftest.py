"""What chaos tests share: a proxy before the shared server, ways to look past it, and forms to aim faults at."""

import hashlib

import pytest

import backstay.sync
from backstay.engine.redis import scripts
from backstay.engine.redis.address import parse
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.gate.commands import Acquire, Release, Renew, Withdraw
from backstay.gate.machine import GATE
from backstay.testing.proxy import FaultProxy


@pytest.fixture
def proxy(backstay_redis):
    with FaultProxy(backstay_redis.port) as proxy:
        yield proxy


@pytest.fixture
def name(request):
    """A lock of this test's own."""
    return "chaos-" + hashlib.sha1(request.node.nodeid.encode(), usedforsecurity=False).hexdigest()[:12]


@pytest.fixture
def truth(backstay_redis):
    """A Backstay with a clear line to the server."""
    with backstay.sync.Backstay(backstay_redis.url) as stay:
        yield stay


class Wire:
    """How each request looks on its way. The server knows the scripts, so their hashes travel."""

    def __init__(self, url):
        link = BlockingLink(parse(url), "wire", None)
        for command in (Acquire, Renew, Release, Withdraw):
            link.call_many([pack("SCRIPT", "LOAD", GATE.script(command))])
            setattr(self, command.__name__.lower(), scripts.command_script(GATE, command).sha.encode())
        link.close()


@pytest.fixture
def wire(backstay_redis):
    return Wire(backstay_redis.url)


@pytest.fixture
def wire_of():
    """The same for a server of the test's own."""
    return Wire
