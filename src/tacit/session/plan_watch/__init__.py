"""A run next to its plan: the drift rule, the progress line, and what rank 0 does with the times of rounds."""
