"""What a text has to keep to, as automata over a model's tokens."""
