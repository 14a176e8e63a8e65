"""What both services share: the sync schedule, codecs, rpc, configuration, checkpoints, monitoring."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tandem-rft")
except PackageNotFoundError:  # run from a tree that was never installed
    __version__ = "0.0.0"
