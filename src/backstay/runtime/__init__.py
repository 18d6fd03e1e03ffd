"""What every room shares below its API: leases and their keeper, operations over a port, validation, serialization."""
