"""Rules for products of values that both depend on the input."""
