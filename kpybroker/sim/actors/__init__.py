"""Optional participants of a run: each is one file with its random draw, its work, and its invariant."""
