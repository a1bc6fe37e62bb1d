"""Changes of a script's own source, each tried by tracing what it makes of the script."""
