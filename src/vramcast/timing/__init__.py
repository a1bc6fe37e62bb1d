"""How long a forward takes: roofline over operators, collectives and launches."""
