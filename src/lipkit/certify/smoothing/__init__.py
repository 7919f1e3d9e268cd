"""Randomized smoothing: certificates for any classifier, from votes under noise."""
