"""Workflows: definitions, runs, and what decides who goes next."""
