"""The version of lipkit: the build, certificates and the command line read it here."""

__version__ = "0.1.0"
