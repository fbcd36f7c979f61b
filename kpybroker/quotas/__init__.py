"""Client quotas: the limits on a client's usage, and its throttle time if it exceeds them (KIP-13, KIP-219)."""
