"""The families of decoders that are served, a record each."""
