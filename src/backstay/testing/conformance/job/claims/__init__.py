"""Which worker gets which job, under which limits, and what happens to jobs of lost workers."""
