"""Pages made of specs and statuses: text for terminals, HTML for notebooks and browsers."""
