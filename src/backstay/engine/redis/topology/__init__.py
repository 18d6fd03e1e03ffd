"""Find the server for a request: a single server, Sentinel or Cluster."""
