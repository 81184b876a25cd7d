"""Other ways to answer an Episode, measured in the same harness."""

from cyctr.methods.references import REFERENCES, check_reference, reference

__all__ = ["REFERENCES", "check_reference", "reference"]
