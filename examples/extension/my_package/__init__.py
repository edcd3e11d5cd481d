"""A strategy, a period and a compressor that tacit finds by their module or by an entry point."""
