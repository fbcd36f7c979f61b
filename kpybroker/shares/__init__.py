"""Share groups (KIP-932): the coordinator that stores the state of share partitions, and the state of leaders."""
