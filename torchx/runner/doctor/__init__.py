"""What keeps jobs from running, found before they are submitted."""
