"""In the training process: the shim, its connections to frameworks, and the report that it sends."""
