"""What the backends on AWS share; each has a folder of its own below."""
