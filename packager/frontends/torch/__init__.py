"""TODO packager/frontends/torch."""
