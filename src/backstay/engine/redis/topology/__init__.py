"""Which server to talk to: a single one, Sentinel, Cluster."""
