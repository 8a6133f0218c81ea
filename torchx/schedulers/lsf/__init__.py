"""What `lsf` is made of: the script, the rows of bjobs, states and reasons in sentences."""
