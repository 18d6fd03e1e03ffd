"""Turn a definition and its inputs into the jobs of a run."""
