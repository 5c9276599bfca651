/** What packager.h says: offsets in bytes of the fields that are used, on 64-bit machines. */
final class Abi {
  static final int VERSION = 1; // PACKAGER_ABI_VERSION
  static final long SYMBOLIC = -1; // PACKAGER_DIM_SYMBOLIC
  static final String ENTRY_SYMBOL = "packager_bundle_v1"; // PACKAGER_ENTRY_SYMBOL

  static final long BUNDLE = 264; // sizeof packager_bundle_v1_t
  static final long ABI_VERSION = 4; // packager_bundle_v1_t.abi_version
  static final long NAME = 8; // packager_bundle_v1_t.name
  static final long NUM_INPUTS = 48; // packager_bundle_v1_t.num_inputs
  static final long NUM_OUTPUTS = 52; // packager_bundle_v1_t.num_outputs
  static final long INPUTS = 56; // packager_bundle_v1_t.inputs
  static final long OUTPUTS = 64; // packager_bundle_v1_t.outputs
  static final long SESSION_CREATE = 80; // packager_bundle_v1_t.session_create
  static final long SESSION_RUN = 88; // packager_bundle_v1_t.session_run
  static final long SESSION_OUTPUT_SHAPE = 96; // packager_bundle_v1_t.session_output_shape
  static final long SESSION_DESTROY = 104; // packager_bundle_v1_t.session_destroy
  static final long SESSION_ERROR = 112; // packager_bundle_v1_t.session_error
  static final long THREAD_ERROR = 120; // packager_bundle_v1_t.thread_error
  static final long STATUS_NAME = 128; // packager_bundle_v1_t.status_name

  static final long INFO = 48; // sizeof packager_tensor_info_t
  static final long INFO_NAME = 0; // packager_tensor_info_t.name
  static final long INFO_CODE = 8; // packager_tensor_info_t.dtype.code
  static final long INFO_BITS = 9; // packager_tensor_info_t.dtype.bits
  static final long INFO_NDIM = 12; // packager_tensor_info_t.ndim
  static final long INFO_SHAPE = 16; // packager_tensor_info_t.shape
  static final long INFO_DIMS = 40; // packager_tensor_info_t.dims

  static final long TENSOR = 48; // sizeof DLTensor
  static final long DATA = 0; // DLTensor.data
  static final long DEVICE_TYPE = 8; // DLTensor.device.device_type
  static final long NDIM = 16; // DLTensor.ndim
  static final long CODE = 20; // DLTensor.dtype.code
  static final long BITS = 21; // DLTensor.dtype.bits
  static final long LANES = 22; // DLTensor.dtype.lanes
  static final long SHAPE = 24; // DLTensor.shape

  static final int CPU = 1; // kDLCPU

  private Abi() {}
}
