"""The scheduler: cron ticks, pruning of finished jobs, checks of workflow runs."""
