"""Rules that distribute the samples of a data set over clients: one file per family, `rules.py` is the list."""
