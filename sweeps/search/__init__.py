"""The next candidate: allocation to workers, encoding, Sobol and grid; Ax and BoTorch in `optimizer`."""
