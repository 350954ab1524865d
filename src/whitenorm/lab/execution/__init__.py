"""Running a study: which runs, where, and what a terminal shows meanwhile."""
