"""Generations and edits."""
