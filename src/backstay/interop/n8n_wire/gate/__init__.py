"""Locks that Backstay shares with n8n's Redis nodes."""
