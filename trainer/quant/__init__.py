"""The ternary layer, the lambda that it obeys, and the saliency curriculum. Used by `stages`."""
