"""The shared base of all rooms: leases and their keeper, operations over a port, validation, serialization."""
