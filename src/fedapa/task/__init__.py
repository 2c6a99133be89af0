"""A model and one client's data as a loss or a step."""
