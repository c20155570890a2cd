"""The decoder-only transformer family."""
