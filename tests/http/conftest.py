"""Applications behind IdempotencyMiddleware that are stopped after the test."""

from __future__ import annotations

import pytest
from idempotent_app import IdempotentApp


@pytest.fixture
def open_app(shared_url, namespace):
    opened = []

    def opener(**options):
        app = IdempotentApp(shared_url, namespace=namespace, **options).__enter__()
        opened.append(app)
        return app

    yield opener
    for app in opened:
        app.__exit__()
