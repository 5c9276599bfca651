"""Every form that a bundle can take, made by the real pipeline and judged by tools that are not packager's."""
