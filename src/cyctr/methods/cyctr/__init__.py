"""The paper's method. Read from the top: `network.py` is the network, the other files its parts."""
