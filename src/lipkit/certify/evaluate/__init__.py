"""A model on a data set: accuracy, stored results, metrics, counter-examples."""
