"""Security: user credentials, principals, logins, TLS for listeners, and the authorizer."""
