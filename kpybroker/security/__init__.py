"""Credentials of users. No listener authenticates clients yet."""
