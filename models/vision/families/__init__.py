"""The families of models that see, a record each."""
