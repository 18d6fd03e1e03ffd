"""What a hub promises, as claims that any set-up can be held to."""

from holdfast.testing.conformance.hub.hints import Hints
from holdfast.testing.conformance.hub.messages import Messages
from holdfast.testing.conformance.hub.notices import Notices


class HubSuite(Messages, Notices, Hints):
    """All claims about the hub. Subclass it and give it a `driver` fixture."""


__all__ = ["HubSuite"]
