"""Networks that are convex in their input, and gradients of convex functions."""
