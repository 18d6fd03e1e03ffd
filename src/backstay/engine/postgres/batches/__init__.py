"""Batches of machine commands and hint counters, and the connections that run them."""
