"""The basis of constrained layers: computed weights, constraints, precision, freezing, condensing, constants."""
