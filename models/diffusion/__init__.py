"""Text-to-image models in diffusers' folder layout: text encoders, a denoiser, an autoencoder, noise schedulers."""
