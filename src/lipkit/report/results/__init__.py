"""The numbers of a report as plain data, gathered from a model and its evaluation."""
