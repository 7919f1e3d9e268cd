"""D >= |A| for every operator, equal where nothing can cancel; and the lengths of rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from geometries import OPERATORS
from lipkit.errors import ArgumentError
from lipkit.linops import Conv, Dense, Function, LinearOperator, Stated, Sum, materialize, sweep
from lipkit.linops.dominating import dominating
from lipkit.linops.row_norms import row_norms
