"""What lies around the router: the server, keys, limits, framing."""
