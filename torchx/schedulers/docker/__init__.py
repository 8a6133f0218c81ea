"""The parts of ``local_docker``: containers, calls of the engine, causes, logs."""
