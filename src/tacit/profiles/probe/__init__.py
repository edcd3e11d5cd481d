"""Short real runs that a profile is made from: what is measured, in which order, and what follows from it."""
