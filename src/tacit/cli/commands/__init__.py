"""The commands of ``tacit``, one module each."""
