"""Old names of version 0.1: they work for one version, with a warning that names the new ones."""
