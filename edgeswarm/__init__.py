"""edgeswarm: train one PyTorch model over the small computers of one network. What a job file needs is here."""

from .job import Job

__all__ = ["Job", "__version__"]

__version__ = "0.1.0"
