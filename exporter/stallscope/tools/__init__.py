"""Commands, and the views in a terminal or a file."""
