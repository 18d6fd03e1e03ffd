"""Read the report of `backstay doctor`."""

from __future__ import annotations


def findings_about(report, topic, level=None):
    """Return the findings of one topic, and of one level if it is given."""
    return [found for found in report.findings if found.topic == topic and level in (None, found.level)]


def only_finding(report, topic, level=None):
    (found,) = findings_about(report, topic, level)
    return found
