"""The audit of a run: everything that it says, recomputed from weights, data and journal."""
