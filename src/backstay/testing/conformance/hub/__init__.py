"""Conformance tests of the hub: messages, notices and hints."""

from backstay.testing.conformance.hub.hints import HubHintsTests
from backstay.testing.conformance.hub.messages import HubMessagesTests
from backstay.testing.conformance.hub.notices import HubNoticesTests


class HubSuite(HubMessagesTests, HubNoticesTests, HubHintsTests):
    """All conformance tests of the hub. Subclass it and give it a `driver` fixture."""


__all__ = ["HubSuite"]
