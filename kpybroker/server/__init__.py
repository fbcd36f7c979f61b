"""The network side of a node: listeners and connections, request dispatch, metrics, and the start and stop of a
node."""
