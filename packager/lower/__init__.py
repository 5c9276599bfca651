"""Lower what no backend took: PartitionedModel in, LoweredModel (scheduled PrimFuncs, split into kernels) out.

Reading order: lowering (the stage, and what differs per device), legalize/ (legalizations that replace TVM's),
kernels (PrimFunc -> one C function per loop nest), blocks (queries that the schedules share), cpu/ and cuda/
(schedules, and lowering of kernels).
"""
