"""Formats that other programs speak."""
