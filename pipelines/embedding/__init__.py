"""Vectors of texts and images, and scores of text pairs: inputs of all requests batched by length."""
