"""The report that a training process sends: its fields, words and limits, its signature, and requests for traces."""
