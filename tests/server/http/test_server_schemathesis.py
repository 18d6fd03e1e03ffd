"""Run schemathesis on the server's OpenAPI document with tokens required: no 5xx, no undocumented response, and no
access without a token.
"""

from __future__ import annotations

import re

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.core import NotSet

from backstay.job.flows import send
from backstay.server.http import openapi
from backstay.server.http.auth import new_token
from backstay.server.routes.table import TABLE
from backstay.server.settings import ServerSettings
from support.server.site import serving

pytestmark = [pytest.mark.slow]

TOKEN, RECORD = new_token("admin", "schemathesis")
#: A schema-valid request may still be refused for rules that JSON Schema cannot express: the length of a name in bytes,
#: the consistency of a definition. An invalid request may also be too long.
VALID = ["2xx", "401", "403", "404", "409", "422"]
INVALID = ["400", "401", "403", "404", "405", "409", "413", "414", "415", "422", "431"]
CONFIG = {
    "checks": {
        "positive_data_acceptance": {"expected-statuses": VALID},
        "negative_data_rejection": {"expected-statuses": INVALID},
    }
}
#: Fields that make a request wait, and their maximum in seconds.
WAITS, LONGEST = ("poll_seconds", "wait_seconds", "wait_secs"), 50
#: Equal to the served document (`test_server_openapi.py`); built at import so that each operation is a test.
schema = schemathesis.openapi.from_dict(openapi.build_document(TABLE), config=SchemathesisConfig.from_dict(CONFIG))


@schema.auth()
class AdminAuth:
    """Authenticate every request as an admin."""

    def get(self, case, context):
        return TOKEN

    def set(self, case, data, context):
        case.headers["Authorization"] = f"Bearer {data}"


@pytest.fixture(scope="module")
def documented_site(tmp_path_factory):
    async def prepare(server):
        await server.stay.open()
        await send(server.core, server.store.put_token(RECORD))

    url = f"sqlite:///{tmp_path_factory.mktemp('schema') / 'backstay.db'}?synchronous=normal"
    unlimited = ServerSettings(
        access_log=False, rate="", auth_failure_rate="1000000/second", stream_keepalive=0.1, stream_timeout=1.0
    )
    with serving(url, prepare=prepare, settings=unlimited) as running:
        yield running


def check_operation(method, path):
    """Build the test of one operation."""

    @schema.include(method=method, path=path).parametrize()
    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    def conforms(case, documented_site):
        for fields in (case.body, case.query):
            if isinstance(fields, dict) and fields.get("wire") == "n8n":  # valid, but refused (400) without Redis
                fields["wire"] = "backstay"
        if case.path == "/api/locks/{name}/acquire":  # waits by default
            if isinstance(case.body, NotSet):
                case.body = {}
            if isinstance(case.body, dict):
                case.body.setdefault("poll_seconds", 0)
        if isinstance(case.body, dict):
            for wait in WAITS:
                seconds = case.body.get(wait)
                if type(seconds) in (int, float) and 0 <= seconds <= LONGEST:
                    case.body[wait] = 0
        case.call_and_validate(base_url=documented_site.url)

    return conforms


# One test function per operation: the cases of a single `parametrize` would share a test id, and xdist reports one
# result per id.
# Streams are endless; `test_server_streams.py` tests them. Long polls are sent with a wait of 0.
for operation in (found.ok() for found in schema.exclude(path_regex=r"/stream$|^/api/events$").get_all_operations()):
    slug = re.sub(r"\W+", "_", f"{operation.method} {operation.path}").strip("_").lower()
    globals()[f"test_the_server_conforms_to_its_openapi_document_{slug}"] = check_operation(
        operation.method.upper(), operation.path
    )
