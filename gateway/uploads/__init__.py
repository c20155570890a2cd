"""What clients send beside JSON, and files that they fetch."""
