"""The server of a server strategy: as a thread of a worker's process, or as its own process."""
