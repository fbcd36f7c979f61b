"""Client quotas: how much a client may do in a time, and how long it has to wait that did more (KIP-13, KIP-219)."""
