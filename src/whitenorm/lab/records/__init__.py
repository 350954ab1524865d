"""What is asked of a run and what came of it, as lines of JSON."""
