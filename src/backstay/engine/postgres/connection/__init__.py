"""Connections to PostgreSQL: own sessions, the wire format, pools that belong to the caller."""
