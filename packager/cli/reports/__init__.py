"""Tables that people read: values of commands in, text out. ``tables`` prints; the others have a module per subject."""
