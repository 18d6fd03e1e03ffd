"""Tests of claims: which worker gets which job, under which limits, and what happens to the jobs of lost workers."""
