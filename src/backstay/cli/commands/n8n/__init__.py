"""The commands of `backstay n8n`."""
