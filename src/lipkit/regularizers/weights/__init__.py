"""Penalties and projections on the weights: norms, orthogonality, spectral gaps, growth."""
