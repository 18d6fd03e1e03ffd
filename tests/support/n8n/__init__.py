"""Fakes of n8n for tests (its Redis nodes and its API), workflows, and the commands of `backstay n8n`."""
