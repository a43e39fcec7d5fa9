"""Loss functions of the stages: pure, tensors in, a 0-d tensor out. Used by `stages`."""
