"""Client quotas: how much a client may do in a period, and how long it must wait if it did more (KIP-13, KIP-219)."""
