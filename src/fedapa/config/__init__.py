"""Configs in TOML: validated when read, complete when written."""
