"""What `local_cwd` is made of: processes, requests, jobs and logs on this machine."""
