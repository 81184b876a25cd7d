"""interim"""


def confidence(probability):
    return float(probability.max())
