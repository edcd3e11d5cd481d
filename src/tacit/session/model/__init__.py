"""The attached model: flat parameters, buffers and moments, the reported model."""
