"""The noise of batch gradients, as the norms of layers see it: where it is heard, and over how many processes."""
