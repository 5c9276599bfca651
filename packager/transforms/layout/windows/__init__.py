"""Convolutions whose windows are gathered before, those with few input channels."""
