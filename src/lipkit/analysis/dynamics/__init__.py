"""How the norms of layers move in training, and through which part of the update."""
