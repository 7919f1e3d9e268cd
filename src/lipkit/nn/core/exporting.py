"""Whether a model is being written down for readers, rather than compiled to run."""

import torch


def exporting() -> bool:
    """True within `torch.export`, unless it is strict; False within `torch.compile`.

    torch 2.11 says of every model that dynamo reads that it is exported: by compilers, and by strict exports too.
    """
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
