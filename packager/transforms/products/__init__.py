"""Passes over products of matrices and convolutions: which become one, which become sums, where residuals are added."""
