"""The API server: credentials, queries, rights, errors, and streams into pods."""
