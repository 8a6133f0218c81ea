"""Parts that backends share; one idea a file."""
