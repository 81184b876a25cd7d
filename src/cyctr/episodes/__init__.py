"""Labelled images -> Episode, a function of (seed, i)."""
