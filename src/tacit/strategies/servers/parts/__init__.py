"""Collaborators of the parameter server: channels, inbox, sharding, staleness bound, records of the learners."""
