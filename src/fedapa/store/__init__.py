"""A run on disk: its folder, its database, its checkpoints; all SQL of runs is here."""
