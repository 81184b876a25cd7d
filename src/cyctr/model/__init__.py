"""Episode -> logits. Read from the top: `cyctr.py` is the network, the other files its parts."""

from cyctr.model.backbone import Backbone
from cyctr.model.cyctr import CyCTR, build

__all__ = ["Backbone", "CyCTR", "build"]
