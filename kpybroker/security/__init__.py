"""Credentials of users, principals, logins, TLS of listeners, and what an authorizer is asked."""
