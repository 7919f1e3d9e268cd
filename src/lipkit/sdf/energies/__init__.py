"""Lipschitz energies: densities proportional to exp(-E) on a box, their samplers, and their training."""
