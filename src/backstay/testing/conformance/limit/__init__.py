"""Conformance tests of rate limits, for any engine and API."""

from backstay.testing.conformance.limit.counting import LimitCountingTests
from backstay.testing.conformance.limit.refusals import LimitRefusalsTests
from backstay.testing.conformance.limit.scopes import LimitScopesTests
from backstay.testing.conformance.limit.times import LimitTimesTests


class LimitSuite(LimitCountingTests, LimitTimesTests, LimitScopesTests, LimitRefusalsTests):
    """All conformance tests of limits. Subclass it and give it a `driver` fixture."""


__all__ = ["LimitSuite"]
