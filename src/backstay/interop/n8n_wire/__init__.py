"""The Redis keys that n8n's own nodes read and write."""
