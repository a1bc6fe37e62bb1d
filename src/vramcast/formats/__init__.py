"""Files of other tools, both ways: read into the options of a question, and written for a plan."""
