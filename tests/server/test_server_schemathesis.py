"""schemathesis over the server's own document, with tokens on: no 5xx, no answer that the document does not know, and
nothing without a token.
"""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from site_of_tests import serving

from backstay.job.flows import send
from backstay.server.http import openapi
from backstay.server.http.auth import new_token
from backstay.server.routes.table import TABLE
from backstay.server.settings import Settings

pytestmark = [pytest.mark.slow]

TOKEN, RECORD = new_token("admin", "schemathesis")
#: What is valid by the document may still be refused for what JSON Schema cannot say: how many bytes a name has, if a
#: definition makes sense. What is not valid may also be too long.
VALID = ["2xx", "401", "403", "404", "409", "422"]
INVALID = ["400", "401", "403", "404", "405", "409", "413", "414", "415", "422", "431"]
CONFIG = {
    "checks": {
        "positive_data_acceptance": {"expected-statuses": VALID},
        "negative_data_rejection": {"expected-statuses": INVALID},
    }
}
#: How long a request may wait, by the names that this has.
WAITS, LONGEST = ("poll_seconds", "wait_seconds", "wait_secs"), 50
#: What the server serves (`test_server_openapi.py`), known before it runs: a test for each operation.
schema = schemathesis.openapi.from_dict(openapi.document(TABLE), config=SchemathesisConfig.from_dict(CONFIG))


@schema.auth()
class Badge:
    """Somebody who may do all."""

    def get(self, case, context):
        return TOKEN

    def set(self, case, data, context):
        case.headers["Authorization"] = f"Bearer {data}"


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    async def prepare(server):
        await server.stay.open()
        await send(server.core, server.store.put_token(RECORD))

    url = f"sqlite:///{tmp_path_factory.mktemp('schema') / 'backstay.db'}?synchronous=normal"
    patient = Settings(access_log=False, rate="", guesses="1000000/second", stream_beat=0.1, stream_patience=1.0)
    with serving(url, prepare=prepare, settings=patient) as running:
        yield running


# Streams never end by themselves; `test_server_streams.py` reads them. Long polls are asked not to wait.
@schema.exclude(path_regex=r"/stream$|^/api/events$").parametrize()
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_server_does_as_its_document_says(case, checked):
    if isinstance(case.body, dict):
        if case.path == "/api/locks/{name}/acquire":  # which waits unless it is told not to
            case.body.setdefault("poll_seconds", 0)
        for wait in WAITS:
            asked = case.body.get(wait)
            if type(asked) in (int, float) and 0 <= asked <= LONGEST:
                case.body[wait] = 0
    case.call_and_validate(base_url=checked.url)
