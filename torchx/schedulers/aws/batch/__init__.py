"""The parts of ``aws_batch``: options, requests, calls, facts, reasons, logs."""
