"""HTTP: the server, what it answers, and in which form."""
