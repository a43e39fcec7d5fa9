"""Training stages: `layerwise` (1.9), `pretrain` (2), `distill` (3), `recover`. Stage 1 is `models.subln`."""
