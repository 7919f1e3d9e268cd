"""Orthogonal convolutions: kernels that are isometries on every image, by construction."""
