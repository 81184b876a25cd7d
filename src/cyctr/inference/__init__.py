"""A few labelled images -> masks for every other image: what a practitioner uses."""
