"""The metrics leaf, and its two endpoints."""
