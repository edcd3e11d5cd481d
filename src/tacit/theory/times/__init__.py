"""Expected seconds per update for servers and rounds."""
