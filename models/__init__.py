"""From files to something that a runner can call."""
