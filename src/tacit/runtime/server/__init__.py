"""Server of a server strategy: a thread of a worker's process, or its own process."""
