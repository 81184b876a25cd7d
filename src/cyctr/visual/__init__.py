"""Episodes and predictions -> pictures."""
