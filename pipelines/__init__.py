"""The step loops, one package a modality. They know no HTTP."""
