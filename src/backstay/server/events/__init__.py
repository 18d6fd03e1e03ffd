"""Event streams, and the notifications that wake them."""
