"""Distances to the decision boundary of nearest-neighbour classifiers."""
