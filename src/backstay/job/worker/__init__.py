"""The worker: claims jobs, runs their handlers and acknowledges the outcomes."""
