"""A dataset -> Episode."""
