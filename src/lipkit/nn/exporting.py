"""Whether a model is being written down for readers, rather than compiled to run."""

import torch


def exporting() -> bool:
    """True within `torch.export`; False within `torch.compile`, of which torch up to 2.11 says that it exports."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
