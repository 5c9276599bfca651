"""Import ``torch.export`` programs: ``load``, ``importer``, ``shapes``, ``states``; converters in ``ops/``."""
