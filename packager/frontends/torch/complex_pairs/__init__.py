"""Complex numbers as pairs of real tensors, since Relax has none: converters of their parts are those of reals."""
