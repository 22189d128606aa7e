"""The checks of the second part, in the order of the notebooks."""
