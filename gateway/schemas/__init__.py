"""Wire Structs: what callers send and get, one module an endpoint family."""
