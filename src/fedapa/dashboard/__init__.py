"""A local page that shows runs as they go; it only reads."""
