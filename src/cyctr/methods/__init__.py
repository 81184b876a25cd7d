"""Features and labels -> logits: one folder for each method. `base.py` says what a method is, `table.py` which there are."""
