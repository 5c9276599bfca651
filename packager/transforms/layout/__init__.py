"""Layout passes: ``transposed_conv`` (``output_phases``), ``channels_last`` (``channel_patterns``), and others."""
