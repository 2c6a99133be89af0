"""Real federations on Flower: everything here would disappear if Flower disappeared."""
