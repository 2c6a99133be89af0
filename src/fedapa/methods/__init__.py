"""The federated methods, one file each; ``catalogue`` lists them."""
