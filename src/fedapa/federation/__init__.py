"""What a coordinator and a site are, whatever carries their messages."""
