"""The demonstration: norms of layers, a ladder of methods, a certified classifier of digits."""
