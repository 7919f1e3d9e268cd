"""A method says whether it reads the region; what it does on one tells whether that is true."""

import math

import pytest
import torch

from lipkit.bound import Metric
from lipkit.bounds import Best, Local, Method, Product
from lipkit.cli.inputs import option_words as names
from lipkit.errors import LipkitError
from lipkit.regions import Box, Everywhere
from support.networks.local_oracles import reference_network

REGION = Box(torch.full((2,), 0.9), torch.full((2,), 0.9001))


@pytest.mark.parametrize("name", sorted(names.known_methods()))
def test_what_a_method_says_is_what_it_does(name: str):
    method: Method = names.known_methods()[name]()
    network = reference_network()
    here = float(method(network, REGION).value.max())
    try:
        everywhere = float(method(network).value.max())
    except LipkitError:
        everywhere = None  # It needs a region, so it reads it.
    # On a region this small all neurons are linear and every local method finds another number.
    assert method.reads_region == (everywhere is None or abs(here - everywhere) > 1e-6 * everywhere)


@pytest.mark.parametrize("name", sorted(names.known_methods()))
def test_the_command_line_wraps_the_others(name: str):
    # The program of LipMIP is linear in other norms only.
    metric = Metric(math.inf, math.inf) if name == "lipmip" else Metric(2.0, 2.0)
    made = names.parse_method(name, metric, REGION, None)
    assert made.reads_region
    assert isinstance(made, Local) != names.known_methods()[name]().reads_region
    assert not isinstance(names.parse_method(name, metric, Everywhere(), None), Local)


def test_the_best_of_several_reads_it_if_all_do():
    assert Best((Local(Product()),)).reads_region
    assert not Best((Local(Product()), Product())).reads_region
