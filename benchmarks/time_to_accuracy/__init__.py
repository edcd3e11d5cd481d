"""Seconds to an accuracy: methods of tacit and its peers on a real wire; see __main__."""
