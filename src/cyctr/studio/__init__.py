"""The page on which photos are labelled, segmented, reviewed, corrected and exported. `serving.serve` starts it."""
