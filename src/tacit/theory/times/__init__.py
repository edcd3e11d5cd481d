"""Expected times of updates and rounds."""
