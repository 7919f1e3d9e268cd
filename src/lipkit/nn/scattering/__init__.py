"""Frozen features of images: wavelets, moduli and means, with a proven constant."""
