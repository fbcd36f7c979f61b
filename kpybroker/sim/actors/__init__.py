"""Who takes part in a run besides the clients that every run has: each in a file, with its draw and its law."""
