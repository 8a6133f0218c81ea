"""What ``aws_batch`` is made of: options, requests, calls, answers as facts, reasons in sentences, logs."""
