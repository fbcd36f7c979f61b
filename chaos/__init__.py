"""Real nodes, stock clients, and everything that may go wrong between and inside them; then the books are read."""
