"""Optional help for programs that run inside a job; a program needs none of it."""
