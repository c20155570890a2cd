"""How the weights in models/embedded were made."""
