"""The parts of the job store as a plain Python object: see `backstay.testing.job_model`."""
