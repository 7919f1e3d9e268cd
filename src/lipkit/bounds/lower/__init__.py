"""Lower bounds and estimates, from points of a region."""
