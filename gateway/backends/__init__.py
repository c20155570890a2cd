"""Backends: where a request is run."""
