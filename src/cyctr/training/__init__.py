"""Episodes and a network -> a trained network."""
