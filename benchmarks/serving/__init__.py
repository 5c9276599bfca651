"""The serving samples under load: no errors, no leaks, and latency beside the bare session."""
