"""Where this repository is: the tests read its documentation, recipes and sources."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
