"""What makes the site out of the pages."""
