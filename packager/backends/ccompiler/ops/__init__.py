"""One file per family of operators, each of which describes a loop nest for a template of ``templates/ccompiler/``."""
