"""Ways to put layers together that know the constant of the whole."""
