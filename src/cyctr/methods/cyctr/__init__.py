"""The paper's method. Read from the top: `network.py` is the network, the other files its parts."""

from cyctr.methods.cyctr.network import CyCTR, build

__all__ = ["CyCTR", "build"]
