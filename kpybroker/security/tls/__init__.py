"""TLS for listeners: settings, stores of keys and certificates, cipher suites, principals of client certificates."""
