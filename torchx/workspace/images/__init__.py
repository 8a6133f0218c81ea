"""Container images of workspaces: what an engine builds, and what goes to a registry without one."""
