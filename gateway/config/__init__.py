"""What an operator decides: files, the environment, their checks."""
