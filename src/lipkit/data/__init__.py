"""Data sets: readers that check what they read, and small ones that are always there."""

from lipkit.data.digits import digits as digits
from lipkit.data.examples import Examples as Examples
