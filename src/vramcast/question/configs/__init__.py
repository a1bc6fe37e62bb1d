"""Configuration files of other tools, read into the options of a question."""
