"""Every metric, once: what all models have, and what the models of one kind have, a module each."""
