"""How long workers compute: times of steps, and buckets of gradients that are sent during the backward pass."""
