"""What the papers claim about deep networks, trained in the simulator on one GPU."""
