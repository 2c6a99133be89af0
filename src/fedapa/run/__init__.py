"""Moves messages, counts, saves and resumes: the one round loop and what stands around it."""
