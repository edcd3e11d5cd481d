"""Arguments of ``tacit.simulate``: their checks, and the settings that reproduce a run."""
