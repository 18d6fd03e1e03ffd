"""What a hub promises, as claims that any set-up can be held to."""

from backstay.testing.conformance.hub.hints import Hints
from backstay.testing.conformance.hub.messages import Messages
from backstay.testing.conformance.hub.notices import Notices


class HubSuite(Messages, Notices, Hints):
    """All conformance tests of the hub. Subclass it and give it a `driver` fixture."""


__all__ = ["HubSuite"]
