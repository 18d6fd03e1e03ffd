"""Start, watch, restart and reload worker processes."""
