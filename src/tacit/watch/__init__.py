"""Follow a run from its folder while it goes on: read its progress, and show it on a local page."""
