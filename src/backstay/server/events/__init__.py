"""Sources of event streams, and the notifier that wakes them."""
