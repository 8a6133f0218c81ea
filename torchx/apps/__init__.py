"""Programs that the built-in components run inside a job."""
