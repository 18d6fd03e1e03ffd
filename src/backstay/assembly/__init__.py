"""Resolve a URL or client to an engine, its hub and its stores, and build a Backstay from them."""
