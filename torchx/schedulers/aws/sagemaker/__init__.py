"""What ``aws_sagemaker`` is made of: options, requests, calls, answers as facts, reasons in sentences, logs."""
