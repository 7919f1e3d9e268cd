"""Residual layers of constant one: steps along the gradient of a convex function, and linear ones."""
