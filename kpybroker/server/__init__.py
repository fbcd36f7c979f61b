"""Sockets, frames, dispatch, start and stop."""
