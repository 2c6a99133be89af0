"""What a user writes in a TOML file: checked on the way in, complete on the way out."""
