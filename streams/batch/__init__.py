"""What happens to the rows of one group in one batch, from packed rows in to packed records out."""
