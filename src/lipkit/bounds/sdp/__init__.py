"""Bounds from semidefinite programs: LipSDP with its solvers, ECLipsE, SeqLip."""
