"""Share groups: the coordinator that keeps the state of share partitions, and what their leader remembers (KIP-932)."""
