"""A model of the job store in plain Python; `store.py` describes it."""
