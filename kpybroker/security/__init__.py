"""Credentials of users, principals, logins, and what an authorizer is asked."""
