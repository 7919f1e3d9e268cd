"""Constants of small networks on a region, exact up to a tolerance: every linear piece, or a mixed-integer program."""
