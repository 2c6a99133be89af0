"""Reads finished and running runs: results, statistics, similarity of clients."""
