"""Records of a run: event trace, run folder, and the merge of traces from several ranks."""
