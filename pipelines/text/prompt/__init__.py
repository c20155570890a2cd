"""From a request to tokens."""
