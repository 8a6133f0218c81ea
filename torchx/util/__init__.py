"""Small parts that need only the standard library; one idea a file."""
