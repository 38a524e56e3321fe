"""An HTTP server: connections, TLS, passwords, requests and responses."""
