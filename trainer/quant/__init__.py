"""The ternary layer, its lambda, and the saliency curriculum. Used by `stages`."""
