"""Tests of job queries, of the records stored beside jobs, and of their deletion."""
