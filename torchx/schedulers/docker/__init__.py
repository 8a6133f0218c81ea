"""What `local_docker` is made of: containers, the engine's calls, causes, logs."""
