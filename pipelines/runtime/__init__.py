"""A worker process: frames in, preparing, the engine's loop, frames out."""
