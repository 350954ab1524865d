"""The studies: the figures and tables of the paper as data, and how records judge its claims."""
