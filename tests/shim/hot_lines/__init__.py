"""Programs with a planted slow line, and the lines that the shim finds."""
