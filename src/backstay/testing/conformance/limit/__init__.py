"""Conformance tests of rate limits, for any engine and API."""

from backstay.testing.conformance.limit.counting import Counting
from backstay.testing.conformance.limit.refusals import Refusals
from backstay.testing.conformance.limit.scopes import Scopes
from backstay.testing.conformance.limit.times import Times


class LimitSuite(Counting, Times, Scopes, Refusals):
    """All conformance tests of limits. Subclass it and give it a `driver` fixture."""


__all__ = ["LimitSuite"]
