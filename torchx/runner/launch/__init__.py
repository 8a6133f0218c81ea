"""From an AppDef to a recorded submission: checks, workspaces, secrets, request, record."""
