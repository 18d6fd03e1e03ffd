"""The worker: claims jobs, runs them, acknowledges them."""
