"""Speech to text, a batch of windows a step: of any file, of any live stream."""
