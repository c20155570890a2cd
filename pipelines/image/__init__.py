"""Images: denoising as a continuously batched step loop."""
