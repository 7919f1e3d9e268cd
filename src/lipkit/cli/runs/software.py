"""The software and the processor of a run, on which the last bits of a training depend."""

from lipkit.bounds.certificates.certificate import Software


def describe_software() -> str:
    """Versions, processor and threads in words."""
    here = Software.here()
    threads = f"{here.threads} thread{'s' if here.threads > 1 else ''}"
    return f"lipkit {here.lipkit}, torch {here.torch}, {here.processor}, {threads}"
