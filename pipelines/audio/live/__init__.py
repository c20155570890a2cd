"""Live streams: their audio, their turns, what is said of each."""
