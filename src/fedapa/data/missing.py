"""Texts that mean a missing value, apart from the tables so that a config needs no NumPy."""

MISSING = ("", "?", "NA", "N/A", "na", "n/a", "NaN", "nan", "null", "NULL", "None")
