"""GPU drivers behind one interface."""
