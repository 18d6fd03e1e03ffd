"""The worker protocol: claims, leases, heartbeats, logs."""
