"""Linear layers, convolutions, pooling, normalisation and chains with a known constant."""
