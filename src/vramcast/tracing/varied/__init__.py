"""What a run takes as a function of its sizes: batch, sequence, side of an image."""
