"""The figure of benchmarks/families.py: four columns, one line for each family."""
from pathlib import Path
def draw(rows, path): pass
