"""TODO packager/bundle/elf."""
