"""Reading and writing the loop nests of kernels: what every schedule rule is built from."""
