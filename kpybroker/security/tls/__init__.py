"""TLS for listeners: settings, key stores and trust stores, cipher suites, principals of client certificates."""
