"""One training: its loop, and what a run may do instead of it."""
