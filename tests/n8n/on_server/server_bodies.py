"""Bodies of workflows that are deployed to n8n: nodes that run under the lock."""

from __future__ import annotations

import secrets

from lab.runner import calling, node


def done(name="Body"):
    """Return a node whose output is {"done": true}."""
    return node(name, "set", 3.4, {"mode": "raw", "jsonOutput": '={{ { "done": true } }}', "options": {}})


def fails_once(seconds=0):
    """Return a body that counts on the server, waits, and fails the first time."""
    inputs = {"scope": secrets.token_hex(4), "limit": 1, "windowSeconds": 10_000_000}
    first = "={{ $('Count').first().json.allowed ? 'no object' : { done: true } }}"
    return (
        calling("Count", "{{@:env:workflows.rate_limit_check.id}}", inputs),
        node("Pause", "wait", 1.1, {"amount": seconds, "unit": "seconds"}),
        node("Broken", "set", 3.4, {"mode": "raw", "jsonOutput": first, "options": {}}),
    )


def reply():
    return node("Reply", "respondToWebhook", 1.1, {"respondWith": "firstIncomingItem", "options": {}})


def inline_body(*body, **options):
    """Return a body that responds first and so must stay inline, with the options that accept this."""
    given = [one | {"alwaysOutputData": True} for one in body]
    accepted = {"error_workflow": "error_handler_lock_cleanup", "in_place": True}
    return (reply(), *given), {"response_mode": "responseNode", **accepted, **options}


def broken():
    """Return a node that fails."""
    return node("Fails", "set", 3.4, {"mode": "raw", "jsonOutput": "={{ 'no object' }}", "options": {}})


def slow(seconds):
    """Return a body that counts, waits, and counts again."""

    def count(name):
        inputs = {"scope": secrets.token_hex(4), "limit": 1, "windowSeconds": 10_000_000}
        return calling(name, "{{@:env:workflows.rate_limit_check.id}}", inputs)

    return count("Count"), node("Pause", "wait", 1.1, {"amount": seconds, "unit": "seconds"}), count("Count Again")
