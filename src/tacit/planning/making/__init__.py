"""How a plan is made of what is asked for and of the results of a search."""
