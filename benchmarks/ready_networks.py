"""Ready networks of the default size: how long it takes to read, to bound from above and from below.

    python benchmarks/ready_networks.py [--names shift_net mixer] [--side 32]

Claim: `lipkit.lipschitz` of a ready network takes some seconds of one core, the search of a lower bound included. Each
row has the processor seconds of reading the model, of the bound by the fold, and of the default search, with the two
bounds and the number of points that were searched.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from timing import machine

from lipkit.bounds import DAG
from lipkit.bounds.lipschitz import default_search, network_of
from lipkit.nn import networks

NAMES = ("shift_net", "mixer", "lip_conv_net", "li_resnet", "vit")


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """What a function gives, and its processor seconds."""
    begun = time.process_time()
    found = run()
    return found, time.process_time() - begun


def main() -> None:
    """Read the arguments, and print a row for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--side", type=int, default=32)
    given: Any = parser.parse_args()
    image = 3, given.side, given.side
    print(f"{machine()}\n")
    print("| network | reading, s | bound | s | lower bound | points | s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in given.names:
        torch.manual_seed(0)
        model = getattr(networks, name)(image, 10).eval()
        with torch.no_grad():
            network, reading = timed(lambda model=model: network_of(model, torch.zeros(1, *image)))
            bound, folding = timed(lambda network=network: DAG()(network))
        search: Any = default_search(network, bound.metric)
        lower, searching = timed(lambda network=network, search=search: search(network.detach()))
        cells = f"{reading:.1f} | {float(bound.value):.4g} | {folding:.3f} | {float(lower.value):.4g} | {search.count}"
        print(f"| `{name}` | {cells} | {searching:.1f} |", flush=True)


if __name__ == "__main__":
    main()
