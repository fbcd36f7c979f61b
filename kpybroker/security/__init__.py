"""Credentials of users, principals, and TLS of listeners."""
