"""Operators that several methods share."""
