"""One self-contained HTML page about the runs of a folder, and its figures as files; it only reads."""
