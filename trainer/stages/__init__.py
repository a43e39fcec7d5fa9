"""The training stages in their order: `subln` (1), `layerwise` (1.9), `pretrain` (2), `distill` (3). Used by
`pipeline`."""
