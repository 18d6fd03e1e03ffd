"""Interoperability: locks and rate limits that Backstay shares with other programs."""
