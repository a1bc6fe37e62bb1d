"""Plans as files that other tools run: a folder per plan, every line with its reason."""
