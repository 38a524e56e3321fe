"""One file a framework, each importing its framework only when it is used."""
