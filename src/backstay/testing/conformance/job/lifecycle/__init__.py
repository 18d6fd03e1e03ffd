"""A job from its enqueueing to its end."""
