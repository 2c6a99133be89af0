"""Many runs over all cores: a grid of configs, a pool of processes, one database of results."""
