"""Publish and listen: the hub, for users."""
