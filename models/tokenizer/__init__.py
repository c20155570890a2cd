"""Tokenizers, from a checkpoint's files."""
