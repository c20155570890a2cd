"""A decoder's tensors: which it has, how they are stored, and the linears over them."""
