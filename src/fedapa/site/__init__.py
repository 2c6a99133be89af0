"""What a site needs beyond a run: its scores, its exported model, a dry run, and joining later."""
