"""Blocks of keys and values."""
