"""A folder of photos -> a folder of masks, in a run that may stop and go on."""
