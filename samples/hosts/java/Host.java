import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/**
 * Runs a packager bundle from Java 22 or later by the foreign function and memory API, without JNI.
 *
 * <pre>
 * javac -d build/java samples/hosts/java/*.java
 * java --enable-native-access=ALL-UNNAMED -cp build/java Host ./model.so input.f32 output.f32
 * </pre>
 *
 * The input file holds the model's one float32 input, little-endian, row-major. Where the first extent of the input is
 * symbolic it follows from the size of the file. All outputs are written one after another.
 */
public final class Host {
  public static void main(String[] arguments) {
    try {
      run(arguments);
    } catch (Exception failure) {
      System.err.println("error: " + failure);
      System.exit(1);
    }
  }

  private static void run(String[] arguments) throws Exception {
    if (arguments.length != 3) throw new IllegalArgumentException("usage: java Host BUNDLE INPUT OUTPUT");
    try (Bundle bundle = new Bundle(Path.of(arguments[0]))) {
      System.out.println("model " + bundle.name);
      bundle.inputs.forEach(info -> System.out.println("input " + info));
      bundle.outputs.forEach(info -> System.out.println("output " + info));
      List<Bundle.Tensor> outputs = bundle.run(List.of(readInput(bundle, Path.of(arguments[1]))));
      try (var file = Files.newOutputStream(Path.of(arguments[2]))) {
        for (Bundle.Tensor output : outputs) file.write(output.data());
      }
    }
  }

  /** Reads the model's one input and derives a symbolic first extent from the size of the file. */
  private static Bundle.Tensor readInput(Bundle bundle, Path path) throws Exception {
    if (bundle.inputs.size() != 1 || !bundle.inputs.get(0).dtype().equals("float32")) {
      throw new IllegalArgumentException("needs a model of one float32 input");
    }
    Bundle.Info info = bundle.inputs.get(0);
    byte[] data = Files.readAllBytes(path);
    long[] shape = info.shape().clone();
    for (int axis = 1; axis < shape.length; axis++) {
      if (shape[axis] == Abi.SYMBOLIC) throw new IllegalArgumentException("only the first dim may vary");
    }
    if (shape.length > 0 && shape[0] == Abi.SYMBOLIC) {
      shape[0] = 1;
      shape[0] = data.length / Math.max(info.bytes(shape), 1);
    }
    if (data.length == 0 || data.length != info.bytes(shape)) {
      throw new IllegalArgumentException(path + ": its size is not that of the input");
    }
    return new Bundle.Tensor(shape, data);
  }

  private Host() {}
}
