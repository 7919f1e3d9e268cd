"""How free numbers become constrained weights: one method a file."""
