"""Locks and rate limits in the Redis keys that n8n's own nodes read and write: `wire="n8n"`."""
