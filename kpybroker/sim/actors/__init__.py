"""Optional participants of a run. Each has one file with its random draw, its work and its invariant."""
