"""Parts of the network that are ours and not the paper's."""
