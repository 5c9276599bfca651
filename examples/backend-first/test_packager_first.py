"""The backend under packager's conformance suite."""

from packager.testing import PartitionConformance, cases


class TestFirst(PartitionConformance):
    kind = "first"
    values = {"min_partition_flops": 50}
    cases = [case for case in cases("dense", "conv", "elementwise") if "Relu" in case.body]
