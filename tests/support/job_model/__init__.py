"""The parts of the job store as a plain Python object: see `support.job_model.store`."""
