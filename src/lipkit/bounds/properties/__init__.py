"""Convexity, smoothness and differentiability of a network."""
