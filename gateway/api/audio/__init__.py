"""Transcription and translation of files."""
