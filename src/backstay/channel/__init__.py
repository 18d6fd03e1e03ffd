"""Channels for users (`stay.hub`): publish messages, announce pending jobs, and listen for both."""
