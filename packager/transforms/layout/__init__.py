"""Layout passes: ``channels_last``, ``channel_patterns``, ``im2col``, ``flatten``."""
