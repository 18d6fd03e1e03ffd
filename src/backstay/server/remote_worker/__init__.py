"""The remote worker: it claims and runs jobs over HTTP, without a connection to the engine."""
