"""What constrained layers rest on: computed weights, constraints, precision, freezing, condensing, constants."""
