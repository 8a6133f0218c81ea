"""What the backends on AWS share."""
