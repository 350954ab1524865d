"""The networks of the paper, and the methods of normalization that are put into them."""
