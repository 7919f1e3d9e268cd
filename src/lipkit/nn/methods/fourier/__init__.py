"""Orthogonal convolutions made in Fourier space, for images of one size."""
