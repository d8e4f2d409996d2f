"""Displays of a running training: in a terminal, in a notebook, as lines, as JSON. No torch."""
