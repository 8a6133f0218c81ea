"""What every verb stands on: backends, components, trackers, secrets and masks, as the config files set them."""
