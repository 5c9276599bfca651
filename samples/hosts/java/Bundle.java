import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static java.lang.foreign.ValueLayout.JAVA_SHORT;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * A loaded bundle with one session, by the foreign function and memory API: a wrapper to copy. It runs in one thread at a
 * time; open the bundle again for more. Nothing may run when it is closed.
 */
public final class Bundle implements AutoCloseable {
  /** An input or output; {@code dims} has the symbolic expression where the extent in {@code shape} is SYMBOLIC. */
  public record Info(String name, int code, int bits, long[] shape, String[] dims) {
    public String dtype() {
      String[] names = {"int", "uint", "float", "", "bfloat", "", "bool"};
      return (code < names.length ? names[code] : "type") + bits;
    }

    /** The bytes of a tensor of this type. Narrow types have a byte for each element. */
    long bytes(long[] extents) {
      long size = (bits + 7) / 8;
      for (long extent : extents) size = Math.multiplyExact(size, extent);
      return size;
    }

    @Override
    public String toString() {
      List<String> extents = new ArrayList<>();
      for (int axis = 0; axis < shape.length; axis++) {
        extents.add(shape[axis] == Abi.SYMBOLIC ? dims[axis] : Long.toString(shape[axis]));
      }
      return name + ": " + dtype() + " " + extents;
    }
  }

  /** Extents, and the elements in the machine's byte order. */
  public record Tensor(long[] shape, byte[] data) {}

  public final String name;
  public final List<Info> inputs;
  public final List<Info> outputs;

  private final Arena library = Arena.ofShared();
  private final MemorySegment table;
  private final MemorySegment session;
  private final MethodHandle run;
  private final MethodHandle outputShape;

  /** Loads a bundle and creates its session. */
  public Bundle(Path path) {
    try {
      MemorySegment symbol =
          SymbolLookup.libraryLookup(path, library)
              .find(Abi.ENTRY_SYMBOL)
              .orElseThrow(() -> new IllegalArgumentException(path + " is not a bundle"));
      MethodHandle entry = Linker.nativeLinker().downcallHandle(symbol, FunctionDescriptor.of(ADDRESS));
      table = ((MemorySegment) call(entry)).reinterpret(Abi.BUNDLE);
      if (table.get(JAVA_INT, Abi.ABI_VERSION) != Abi.VERSION) {
        throw new IllegalArgumentException(path + ": made for another version of packager.h");
      }
      name = text(table.get(ADDRESS, Abi.NAME));
      inputs = infos(table.get(ADDRESS, Abi.INPUTS), table.get(JAVA_INT, Abi.NUM_INPUTS));
      outputs = infos(table.get(ADDRESS, Abi.OUTPUTS), table.get(JAVA_INT, Abi.NUM_OUTPUTS));
      run =
          function(
              Abi.SESSION_RUN,
              FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, JAVA_INT, ADDRESS, JAVA_INT, ADDRESS));
      outputShape =
          function(
              Abi.SESSION_OUTPUT_SHAPE,
              FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, JAVA_INT, JAVA_INT, ADDRESS));
      try (Arena memory = Arena.ofConfined()) {
        MemorySegment created = memory.allocate(ADDRESS);
        MethodHandle create = function(Abi.SESSION_CREATE, FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS));
        int status = (int) call(create, MemorySegment.NULL, created);
        if (status != 0) {
          MethodHandle message = function(Abi.THREAD_ERROR, FunctionDescriptor.of(ADDRESS));
          throw failure("session_create", status, (MemorySegment) call(message));
        }
        session = created.get(ADDRESS, 0);
      }
    } catch (RuntimeException failure) {
      library.close();
      throw failure;
    }
  }

  /** Runs the model once. */
  public List<Tensor> run(List<Tensor> given) {
    if (given.size() != inputs.size()) {
      throw new IllegalArgumentException(given.size() + " inputs, not " + inputs.size());
    }
    try (Arena memory = Arena.ofConfined()) {
      MemorySegment arguments = memory.allocate(ADDRESS, given.size() + 1);
      for (int i = 0; i < given.size(); i++) {
        MemorySegment tensor = allocate(memory, inputs.get(i), given.get(i).shape());
        byte[] data = given.get(i).data();
        if (data.length != inputs.get(i).bytes(given.get(i).shape())) {
          throw new IllegalArgumentException(inputs.get(i).name() + ": its data are not as large as its shape says");
        }
        MemorySegment.copy(data, 0, data(tensor, data.length), JAVA_BYTE, 0, data.length);
        arguments.setAtIndex(ADDRESS, i, tensor);
      }
      MemorySegment results = memory.allocate(ADDRESS, outputs.size() + 1);
      List<MemorySegment> tensors = new ArrayList<>();
      for (int i = 0; i < outputs.size(); i++) {
        Info info = outputs.get(i);
        MemorySegment shape = memory.allocate(JAVA_LONG, info.shape().length + 1); // + 1: a scalar has no extents
        check("session_output_shape", (int) call(outputShape, session, arguments, given.size(), i, shape));
        tensors.add(allocate(memory, info, longs(shape, info.shape().length)));
        results.setAtIndex(ADDRESS, i, tensors.get(i));
      }
      check(
          "session_run",
          (int) call(run, session, arguments, given.size(), results, outputs.size(), MemorySegment.NULL));
      List<Tensor> computed = new ArrayList<>();
      for (int i = 0; i < outputs.size(); i++) { // an extent that only the run knows may be smaller than its room
        long[] shape = longs(tensors.get(i).get(ADDRESS, Abi.SHAPE), outputs.get(i).shape().length);
        long bytes = outputs.get(i).bytes(shape);
        computed.add(new Tensor(shape, data(tensors.get(i), bytes).toArray(JAVA_BYTE)));
      }
      return computed;
    }
  }

  @Override
  public void close() {
    call(function(Abi.SESSION_DESTROY, FunctionDescriptor.of(JAVA_INT, ADDRESS)), session);
    library.close();
  }

  private static MemorySegment allocate(Arena memory, Info info, long[] shape) {
    MemorySegment tensor = memory.allocate(Abi.TENSOR, 8);
    MemorySegment extents = memory.allocate(JAVA_LONG, shape.length + 1);
    MemorySegment.copy(shape, 0, extents, JAVA_LONG, 0, shape.length);
    tensor.set(ADDRESS, Abi.DATA, memory.allocate(info.bytes(shape) + 1, 64)); // + 1: an extent may be zero
    tensor.set(JAVA_INT, Abi.DEVICE_TYPE, Abi.CPU);
    tensor.set(JAVA_INT, Abi.NDIM, shape.length);
    tensor.set(JAVA_BYTE, Abi.CODE, (byte) info.code());
    tensor.set(JAVA_BYTE, Abi.BITS, (byte) info.bits());
    tensor.set(JAVA_SHORT, Abi.LANES, (short) 1);
    tensor.set(ADDRESS, Abi.SHAPE, extents);
    return tensor;
  }

  private static MemorySegment data(MemorySegment tensor, long bytes) {
    return tensor.get(ADDRESS, Abi.DATA).reinterpret(bytes);
  }

  private static List<Info> infos(MemorySegment first, int count) {
    List<Info> found = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      MemorySegment info = first.reinterpret(Abi.INFO * count).asSlice(Abi.INFO * i, Abi.INFO);
      int ndim = info.get(JAVA_INT, Abi.INFO_NDIM);
      long[] shape = longs(info.get(ADDRESS, Abi.INFO_SHAPE), ndim);
      String[] dims = new String[ndim];
      for (int axis = 0; axis < ndim; axis++) {
        if (shape[axis] == Abi.SYMBOLIC) {
          MemorySegment texts = info.get(ADDRESS, Abi.INFO_DIMS).reinterpret(ADDRESS.byteSize() * ndim);
          dims[axis] = text(texts.getAtIndex(ADDRESS, axis));
        }
      }
      int code = Byte.toUnsignedInt(info.get(JAVA_BYTE, Abi.INFO_CODE));
      int bits = Byte.toUnsignedInt(info.get(JAVA_BYTE, Abi.INFO_BITS));
      found.add(new Info(text(info.get(ADDRESS, Abi.INFO_NAME)), code, bits, shape, dims));
    }
    return List.copyOf(found);
  }

  private static long[] longs(MemorySegment start, int count) {
    return start.reinterpret(JAVA_LONG.byteSize() * count).toArray(JAVA_LONG);
  }

  private static String text(MemorySegment start) {
    return start.reinterpret(Long.MAX_VALUE).getString(0);
  }

  private MethodHandle function(long offset, FunctionDescriptor descriptor) {
    return Linker.nativeLinker().downcallHandle(table.get(ADDRESS, offset), descriptor);
  }

  private void check(String call, int status) {
    if (status == 0) return;
    MethodHandle message = function(Abi.SESSION_ERROR, FunctionDescriptor.of(ADDRESS, ADDRESS));
    throw failure(call, status, (MemorySegment) call(message, session));
  }

  private IllegalStateException failure(String call, int status, MemorySegment message) {
    MethodHandle statusName = function(Abi.STATUS_NAME, FunctionDescriptor.of(ADDRESS, JAVA_INT));
    String name = text((MemorySegment) call(statusName, status));
    return new IllegalStateException(call + ": " + name + ": " + text(message));
  }

  private static Object call(MethodHandle function, Object... arguments) {
    try {
      return function.invokeWithArguments(arguments);
    } catch (RuntimeException | Error failure) {
      throw failure;
    } catch (Throwable impossible) { // C throws nothing
      throw new AssertionError(impossible);
    }
  }
}
