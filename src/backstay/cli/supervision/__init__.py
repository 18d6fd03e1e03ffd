"""Worker processes: started, watched, reloaded."""
