"""Certified radii, and logits with a bound of their rounding error."""
