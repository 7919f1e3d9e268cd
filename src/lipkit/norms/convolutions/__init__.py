"""Norms of convolutions from their symbols and kernels."""
