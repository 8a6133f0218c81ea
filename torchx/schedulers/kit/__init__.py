"""Building blocks that backends share, one concept per module."""
