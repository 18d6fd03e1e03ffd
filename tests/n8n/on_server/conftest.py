"""Deploy workflows to full n8n servers, with locks on Redis or on a Backstay server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from deployed_workflow import (
    deploying_http,
    deploying_redis,
)
from redis import Redis

from backstay import sync as blocking


@pytest.fixture
def deploy(n8n_server, backstay_redis):
    with deploying_redis(n8n_server, backstay_redis) as make:
        yield make


@pytest.fixture
def deploy_http(n8n_server, backstay_server):
    with deploying_http(n8n_server, backstay_server) as make:
        yield make


@pytest.fixture
def deploy_queue(n8n_queue, backstay_server):
    """Deploys over http to an n8n in queue mode."""
    with deploying_http(n8n_queue, backstay_server) as make:
        yield make


@pytest.fixture
def deploy_redis_queue(n8n_queue, backstay_redis):
    with deploying_redis(n8n_queue, backstay_redis) as make:
        yield make


@pytest.fixture
def redis(backstay_redis):
    with Redis.from_url(backstay_redis.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def stay(backstay_redis):
    with blocking.Backstay(backstay_redis.url) as made:
        yield made


@pytest.fixture
def call_locks(backstay_server):
    """`call_locks(scope, verb, **body)` calls the lock API of the Backstay server directly; returns status and JSON."""
    url, token = backstay_server
    headers = {"Authorization": f"Bearer {token}", "content-type": "application/json"}

    def call(scope, verb, **body):
        address = f"{url}/api/locks/{scope}/{verb}"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers, method="POST")  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=60) as found:  # noqa: S310 - loopback
                return found.status, json.load(found)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return call
