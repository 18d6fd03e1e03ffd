"""The parts of the job store as a plain Python object: see `holdfast.testing.job_model`."""
