"""What a site needs beyond a run: scores per site, a model to take home, what would leave, how to join later."""
