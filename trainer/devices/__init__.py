"""The hardware: CPU, CUDA and XLA behind one `Device`, and the process settings that they need."""
