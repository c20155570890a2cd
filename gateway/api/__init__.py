"""The endpoints: a folder for each family, with its routes, what is asked and what is answered."""
