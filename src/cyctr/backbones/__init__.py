"""Image -> Features."""
