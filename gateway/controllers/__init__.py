"""One thin controller an endpoint family: decode, ask, answer."""
