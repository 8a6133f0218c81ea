"""What the Kubernetes backends share: pods, the objects that own them, the calls of the API."""
