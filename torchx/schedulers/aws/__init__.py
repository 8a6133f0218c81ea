"""Code that the AWS backends share; each has a folder of its own below."""
