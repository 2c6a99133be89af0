"""How fast it is, measured: our engines and the loop that everybody writes, side by side in one run."""
