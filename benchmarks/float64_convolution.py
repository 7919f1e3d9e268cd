"""Float64 convolutions on a GPU: cuDNN against torch's own matrix products.

Claim: on ResNet-18's layers torch's own path is several times faster in float64, which is why norms switch cuDNN off.

    python benchmarks/float64_convolution.py
"""

import torch
from resnet18_layers import LAYERS
from timing import best_of, machine
from torch.nn import functional


def main() -> None:
    if not torch.cuda.is_available():
        print("This comparison needs a CUDA device.")
        return
    print(machine())
    print(f"{'out, in, kernel, stride, size':32} {'cuDNN, us':>20} {'plain, us':>20} {'ratio':>7}")
    for c_out, c_in, k, stride, size in dict.fromkeys(LAYERS):
        weight = torch.randn(c_out, c_in, k, k, dtype=torch.float64, device="cuda")
        x = torch.randn(1, c_in, size, size, dtype=torch.float64, device="cuda")
        y = functional.conv2d(x, weight, stride=stride, padding=k // 2)
        rest = (size + 2 * (k // 2) - k) % stride

        def both(
            x: torch.Tensor = x, y: torch.Tensor = y, w: torch.Tensor = weight, s: int = stride, o: int = rest
        ) -> None:
            for _ in range(20):
                functional.conv2d(x, w, stride=s, padding=w.shape[-1] // 2)
                functional.conv_transpose2d(y, w, stride=s, padding=w.shape[-1] // 2, output_padding=o)

        slow, _ = best_of(both)
        with torch.backends.cudnn.flags(enabled=False):
            fast, _ = best_of(both)
        shape = f"{c_out}, {c_in}, {k}, {stride}, {size}"
        print(f"{shape:32} {slow / 20 * 1e6:20.0f} {fast / 20 * 1e6:20.0f} {slow / fast:7.1f}")


if __name__ == "__main__":
    main()
