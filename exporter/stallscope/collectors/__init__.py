"""One file a source; each turns one part of the machine into catalogue samples."""
