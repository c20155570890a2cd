"""The decode forward of quantised models in C, for processors with AVX-512 VNNI.

Built with the package where there is a compiler. Without it, or on another processor, decode runs on torch's kernels
(`models.decoder.transformer`), which is also what it is tested against.
"""
