"""Conformance tests of the hub: messages, notices and hints."""

from backstay.testing.conformance.hub.hints import Hints
from backstay.testing.conformance.hub.messages import Messages
from backstay.testing.conformance.hub.notices import Notices


class HubSuite(Messages, Notices, Hints):
    """All conformance tests of the hub. Subclass it and give it a `driver` fixture."""


__all__ = ["HubSuite"]
