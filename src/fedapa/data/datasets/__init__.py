"""The data sets: where their files are, how to read and how to fetch them."""
