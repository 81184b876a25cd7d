"""Labelled photos -> supports."""
