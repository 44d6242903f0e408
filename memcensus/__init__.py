"""A census of memory: every byte counted once, with its owner and the source of the figure."""

__version__ = "0.1.0"
