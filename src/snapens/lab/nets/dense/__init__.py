"""DenseNet, and the kernels that compute its dense blocks on a GPU."""
