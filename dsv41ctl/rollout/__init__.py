"""The whole way from A to B as gates: each has a verdict and figures, and a gate that fails undoes to A."""
