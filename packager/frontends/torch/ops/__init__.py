"""TODO packager/frontends/torch/ops."""
