"""What became of jobs: statuses, lists, waiting, polling, and submissions whose answer was lost."""
