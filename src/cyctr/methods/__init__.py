"""Other ways to answer an Episode, measured in the same harness."""

from cyctr.methods.references import REFERENCES, reference

__all__ = ["REFERENCES", "reference"]
