"""Questions as users write them: options, keyword arguments and job files, all from one table."""
