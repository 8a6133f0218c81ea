"""What `slurm` is made of: options, the script, questions and answers, reasons in sentences."""
