"""Loss functions of the stages, pure: tensors in, 0-d tensors out. Used by `stages` and `training`."""
