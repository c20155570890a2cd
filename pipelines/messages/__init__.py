"""What the gateway and the workers say to each other."""
