"""Tables that people read. In: values of the commands. Out: text, by ``tables``; a module per command."""
