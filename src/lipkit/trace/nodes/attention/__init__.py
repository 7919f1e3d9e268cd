"""Softmax, its logarithm, and attention."""
