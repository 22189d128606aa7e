"""The checks of the first part, in the order of the notebooks."""
