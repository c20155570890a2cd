"""Small weights that this project trained, with their cards."""
