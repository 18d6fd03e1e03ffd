"""From a definition and its inputs to the jobs of a run."""
