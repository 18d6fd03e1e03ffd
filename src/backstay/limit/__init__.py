"""Rate limits: how often something may happen in a time window, for each key."""
