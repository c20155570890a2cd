"""Whole files, and captions."""
