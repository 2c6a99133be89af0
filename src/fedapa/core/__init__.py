"""Arrays in, arrays out: the arithmetic that a referee could check."""
