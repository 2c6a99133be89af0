"""One client learns: its objective, its model, its training loop, the engines that run it."""
