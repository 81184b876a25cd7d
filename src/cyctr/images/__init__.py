"""Files <-> pixels, and the geometry of resizing and padding."""
