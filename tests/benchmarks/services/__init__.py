"""Processes under test: each answers one JSON line on stdout for each line on stdin, and sleeps in between."""
