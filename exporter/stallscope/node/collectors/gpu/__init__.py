"""Collection from GPUs of every vendor: polls, events, and the life of a GPU."""
