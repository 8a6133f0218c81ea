"""Container images of workspaces, built with an engine or pushed to a registry without one."""
