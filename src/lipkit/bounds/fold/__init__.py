"""Bounds from the norms of blocks: products, folds over the graph, LipLT, constants of pairs, the table of layers."""
