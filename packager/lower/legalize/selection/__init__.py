"""Legalize what compares and keeps elements: the best of rows, distinct elements, their places, boxes that stay."""
