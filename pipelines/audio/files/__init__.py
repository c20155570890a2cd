"""Whole files."""
