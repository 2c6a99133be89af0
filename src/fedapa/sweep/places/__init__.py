"""Places other than this machine where the runs of a sweep can be played."""
