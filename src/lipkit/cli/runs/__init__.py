"""A run and its folder: identity, stored bound, assessment, results."""
