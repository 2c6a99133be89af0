"""Hyper-parameters chosen on held-out train data: a search space, a search, and a sweep of its trials."""
