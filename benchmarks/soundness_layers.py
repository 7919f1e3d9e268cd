"""No constrained layer has a norm above one: random methods, geometries, free numbers and types, against dense SVD.

Claims: of N drawn layers (Linear, Conv1d to Conv3d, ConvTranspose1d and 2d; strides, dilations, groups, paddings of
every mode; free numbers as started, random, equal, alternating, rank one, zero, huge, tiny; float32 and float64), no
stored weight has an operator norm above 1 + n 2^-53 by dense SVD in float64, none above what the layer declares, and
where an isometry is promised and the free numbers are those of the start, the smallest singular value is at least
1 - 2e-5. The exit status is 1 if anything is violated; `--start I --count 1` draws the culprit again.

    python benchmarks/soundness_layers.py [--count 5000] [--start 0]
"""

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from lipkit import nn as lnn
from lipkit.errors import LipkitError
from lipkit.nn import WeightMethod
from lipkit.nn.methods._base import Promise
from support.layers.checks import check_isometry, check_norm, promised
from support.layers.examples import EVERY
from support.layers.geometries import CONV, CONV_TRANSPOSE, FILLS, MODES, Drawn, filled


def drawn(draw: random.Random, method: WeightMethod) -> Drawn | None:
    """A layer and the shape of an input; None where torch itself refuses, or the matrix would be large."""
    kind = draw.choice(("linear", "conv", "conv", "conv", "transposed"))
    if kind == "linear":
        size = (draw.randint(1, 40), draw.randint(1, 40))
        return Drawn(lnn.Linear(*size, method=method), "", size[:1])
    rank = draw.choice((1, 2, 2, 3) if kind == "conv" else (1, 2))
    longest = {1: 24, 2: 7, 3: 4}[rank]
    axes = [
        [draw.randint(1, 5 if rank == 1 else 3), draw.choice((1, 1, 2, 3)), draw.choice((1, 1, 2))] for _ in range(rank)
    ]
    kernel, stride, dilation = (tuple(axis[i] for axis in axes) for i in range(3))
    padding = tuple(draw.choice((0, d * (k - 1) // 2, draw.randint(0, 2))) for k, _, d in axes)
    groups = draw.choice((1, 1, 2))
    channels = (groups * draw.randint(1, 3), groups * draw.randint(1, 3))
    in_shape = (channels[0], *(draw.randint(1, longest) for _ in range(rank)))
    if kind == "conv":
        mode = draw.choice(MODES)
        layer = CONV[rank](*channels, kernel, stride, padding, dilation, groups, padding_mode=mode, method=method)
    else:
        rest = tuple(draw.randint(0, max(s, d) - 1) for _, s, d in axes)
        layer = CONV_TRANSPOSE[rank](*channels, kernel, stride, padding, rest, groups, True, dilation, method=method)
    with torch.no_grad():
        size = layer(torch.zeros(1, *in_shape)).numel()
    return Drawn(layer, "", in_shape) if 0 < size <= 600 else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--start", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    started, bad, counts = time.perf_counter(), 0, Counter[str]()
    for seed in range(args.start, args.start + args.count):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        method = draw.choice(EVERY)
        try:
            found = drawn(draw, method)
        except LipkitError:
            counts["refused"] += 1
            continue
        except RuntimeError:
            counts["no input of this size"] += 1
            continue
        if found is None:
            counts["too large or empty"] += 1
            continue
        layer = found.layer.to(draw.choice((torch.float32, torch.float64)))
        fill = draw.choice(sorted(FILLS))
        filled(layer, fill)
        counts["checked"] += 1
        try:
            check_norm(layer, found.in_shape)
            if fill == "as started" and promised(layer) is Promise.ISOMETRY:
                counts["isometries"] += 1
                check_isometry(layer, found.in_shape, 1 - 2e-5)
        except AssertionError as error:
            bad += 1
            print(f"seed {seed}: {layer} with {fill} numbers on {found.in_shape}: {error}", flush=True)
    print(*(f"{count:8}  {what}" for what, count in sorted(counts.items())), sep="\n")
    print(f"{args.count} draws, {bad} violations, {time.perf_counter() - started:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
