"""Local SGD: periodic averaging, period rules and outer optimizers."""
