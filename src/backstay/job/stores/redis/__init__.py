"""The job store on Redis."""
