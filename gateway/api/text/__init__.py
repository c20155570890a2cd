"""Chat and completions."""
