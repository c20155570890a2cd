"""Where models come from, and the formats that they are in."""
