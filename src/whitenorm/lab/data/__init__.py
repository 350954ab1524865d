"""The data sets: where their files come from, how they are read, and what a run uses of them."""
