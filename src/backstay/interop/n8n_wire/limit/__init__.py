"""Rate limits that Backstay shares with n8n's rate_limit_check."""
