"""The parts of ``aws_sagemaker``: options, requests, calls, facts, reasons, logs."""
