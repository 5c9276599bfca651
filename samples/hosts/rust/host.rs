//! Runs a packager bundle from Rust with no crates: `abi` says in Rust what packager.h says in C.
//!
//!     rustc -O samples/hosts/rust/host.rs -o host
//!     ./host ./model.so input.f32 output.f32
//!
//! The input file holds the model's one float32 input, little-endian, row-major. Where the first extent of the input is
//! symbolic it follows from the size of the file. All outputs are written one after another. Needs rustc 1.63 or later.

use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_void};
use std::{env, fs, mem, process, ptr, slice};

/// packager.h, ABI version 1. Fields that this program does not read are there for the layout.
#[allow(dead_code)]
mod abi {
    use std::os::raw::{c_char, c_int, c_void};

    pub const VERSION: u32 = 1;
    pub const ENTRY_SYMBOL: &[u8] = b"packager_bundle_v1\0";
    pub const DIM_SYMBOLIC: i64 = -1;
    pub const DEVICE_CPU: i32 = 1;
    pub const CODE_FLOAT: u8 = 2;

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct DataType {
        pub code: u8,
        pub bits: u8,
        pub lanes: u16,
    }

    #[repr(C)]
    pub struct Tensor {
        pub data: *mut c_void,
        pub device_type: i32,
        pub device_id: i32,
        pub ndim: i32,
        pub dtype: DataType,
        pub shape: *mut i64,
        pub strides: *mut i64,
        pub byte_offset: u64,
    }

    #[repr(C)]
    pub struct TensorInfo {
        pub name: *const c_char,
        pub dtype: DataType,
        pub ndim: i32,
        pub shape: *const i64,
        pub min_shape: *const i64,
        pub max_shape: *const i64,
        pub dims: *const *const c_char,
    }

    #[repr(C)]
    pub struct Session {
        _opaque: [u8; 0],
    }

    #[repr(C)]
    pub struct Bundle {
        pub struct_size: u32,
        pub abi_version: u32,
        pub name: *const c_char,
        pub manifest: *const c_char,
        pub manifest_size: u64,
        pub arena_bytes: u64,
        pub constant_bytes: u64,
        pub num_inputs: i32,
        pub num_outputs: i32,
        pub inputs: *const TensorInfo,
        pub outputs: *const TensorInfo,
        pub set_threads: unsafe extern "C" fn(i32) -> i32,
        pub session_create: unsafe extern "C" fn(*const c_void, *mut *mut Session) -> i32,
        pub session_run:
            unsafe extern "C" fn(*mut Session, *const *const Tensor, i32, *const *mut Tensor, i32, *mut c_void) -> i32,
        pub session_output_shape: unsafe extern "C" fn(*mut Session, *const *const Tensor, i32, i32, *mut i64) -> i32,
        pub session_destroy: unsafe extern "C" fn(*mut Session) -> i32,
        pub session_error: unsafe extern "C" fn(*const Session) -> *const c_char,
        pub thread_error: unsafe extern "C" fn() -> *const c_char,
        pub status_name: unsafe extern "C" fn(i32) -> *const c_char,
        pub reserved: [*const c_void; 8],
    }

    pub type Entry = unsafe extern "C" fn() -> *const Bundle;

    #[link(name = "dl")]
    extern "C" {
        pub fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
        pub fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void;
        pub fn dlclose(library: *mut c_void) -> c_int;
        pub fn dlerror() -> *const c_char;
    }
}

const RTLD_NOW: c_int = 2;

/// Copies a zero-terminated string that C gave out.
fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

/// A tensor that owns its elements, kept in u64 so that they are aligned for every dtype.
struct Tensor {
    dtype: abi::DataType,
    shape: Vec<i64>,
    storage: Vec<u64>,
}

impl Tensor {
    fn new(dtype: abi::DataType, shape: Vec<i64>) -> Tensor {
        let bytes = count_bytes(dtype, &shape);
        Tensor { dtype, shape, storage: vec![0; (bytes + 7) / 8] }
    }

    fn bytes(&self) -> &[u8] {
        let bytes = count_bytes(self.dtype, &self.shape);
        unsafe { slice::from_raw_parts(self.storage.as_ptr() as *const u8, bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = count_bytes(self.dtype, &self.shape);
        unsafe { slice::from_raw_parts_mut(self.storage.as_mut_ptr() as *mut u8, bytes) }
    }

    /// Valid while `self` is alive and not resized.
    fn view(&mut self) -> abi::Tensor {
        abi::Tensor {
            data: self.storage.as_mut_ptr() as *mut c_void,
            device_type: abi::DEVICE_CPU,
            device_id: 0,
            ndim: self.shape.len() as i32,
            dtype: self.dtype,
            shape: self.shape.as_mut_ptr(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        }
    }
}

fn count_bytes(dtype: abi::DataType, shape: &[i64]) -> usize {
    shape.iter().product::<i64>() as usize * ((usize::from(dtype.bits) + 7) / 8)
}

/// A loaded bundle.
struct Bundle {
    library: *mut c_void,
    table: &'static abi::Bundle, // as long as `library` is open: never handed out
}

impl Bundle {
    fn open(path: &str) -> Result<Bundle, String> {
        let c_path = CString::new(path).map_err(|_| format!("{:?} is no file name", path))?;
        unsafe {
            let library = abi::dlopen(c_path.as_ptr(), RTLD_NOW);
            if library.is_null() {
                return Err(text(abi::dlerror()));
            }
            let symbol = abi::dlsym(library, abi::ENTRY_SYMBOL.as_ptr() as *const c_char);
            if symbol.is_null() {
                let message = text(abi::dlerror());
                abi::dlclose(library);
                return Err(message);
            }
            let entry: abi::Entry = mem::transmute(symbol);
            let bundle = Bundle { library, table: &*entry() };
            if bundle.table.abi_version != abi::VERSION {
                return Err(format!("{}: made for another version of packager.h", path));
            }
            Ok(bundle)
        }
    }

    fn inputs(&self) -> &[abi::TensorInfo] {
        infos(self.table.inputs, self.table.num_inputs)
    }

    fn outputs(&self) -> &[abi::TensorInfo] {
        infos(self.table.outputs, self.table.num_outputs)
    }

    fn error(&self, call: &str, status: i32, message: *const c_char) -> String {
        format!("{}: {}: {}", call, text(unsafe { (self.table.status_name)(status) }), text(message))
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        unsafe { abi::dlclose(self.library) };
    }
}

fn infos<'a>(first: *const abi::TensorInfo, count: i32) -> &'a [abi::TensorInfo] {
    if count == 0 {
        return &[];
    }
    unsafe { slice::from_raw_parts(first, count as usize) }
}

impl abi::TensorInfo {
    fn extents(&self) -> Vec<i64> {
        if self.ndim == 0 {
            return Vec::new();
        }
        unsafe { slice::from_raw_parts(self.shape, self.ndim as usize) }.to_vec()
    }

    fn describe(&self) -> String {
        let kind = match self.dtype.code {
            0 => "int",
            1 => "uint",
            2 => "float",
            4 => "bfloat",
            6 => "bool",
            _ => "",
        };
        let extents: Vec<String> = self
            .extents()
            .iter()
            .enumerate()
            .map(|(axis, &extent)| match extent {
                abi::DIM_SYMBOLIC => text(unsafe { *self.dims.add(axis) }),
                _ => extent.to_string(),
            })
            .collect();
        format!("{}: {}{} [{}]", text(self.name), kind, self.dtype.bits, extents.join(", "))
    }
}

/// A session of a bundle.
struct Session<'a> {
    bundle: &'a Bundle,
    handle: *mut abi::Session,
}

impl<'a> Session<'a> {
    fn create(bundle: &'a Bundle) -> Result<Session<'a>, String> {
        let mut handle = ptr::null_mut();
        let status = unsafe { (bundle.table.session_create)(ptr::null(), &mut handle) };
        if status != 0 {
            return Err(bundle.error("session_create", status, unsafe { (bundle.table.thread_error)() }));
        }
        Ok(Session { bundle, handle })
    }

    fn check(&self, call: &str, status: i32) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        Err(self.bundle.error(call, status, unsafe { (self.bundle.table.session_error)(self.handle) }))
    }

    /// Runs once with one input; returns the outputs in the bundle's order.
    fn run(&mut self, input: &mut Tensor) -> Result<Vec<Tensor>, String> {
        let table = self.bundle.table;
        let input_view = input.view();
        let arguments: [*const abi::Tensor; 1] = [&input_view];

        let mut outputs = Vec::new();
        for (index, info) in self.bundle.outputs().iter().enumerate() {
            let mut shape = info.extents();
            let status = unsafe {
                (table.session_output_shape)(self.handle, arguments.as_ptr(), 1, index as i32, shape.as_mut_ptr())
            };
            self.check("session_output_shape", status)?;
            outputs.push(Tensor::new(info.dtype, shape));
        }
        let mut views: Vec<abi::Tensor> = outputs.iter_mut().map(Tensor::view).collect();
        let results: Vec<*mut abi::Tensor> = views.iter_mut().map(|view| view as *mut abi::Tensor).collect();
        let status = unsafe {
            (table.session_run)(
                self.handle,
                arguments.as_ptr(),
                1,
                results.as_ptr(),
                results.len() as i32,
                ptr::null_mut(),
            )
        };
        self.check("session_run", status)?;
        Ok(outputs)
    }
}

impl<'a> Drop for Session<'a> {
    fn drop(&mut self) {
        // Cannot fail: `run` takes &mut self, so the session is not running.
        unsafe { (self.bundle.table.session_destroy)(self.handle) };
    }
}

/// Reads the model's one input and derives a symbolic first extent from the size of the file.
fn read_input(bundle: &Bundle, path: &str) -> Result<Tensor, String> {
    let info = match bundle.inputs() {
        [info] if info.dtype.code == abi::CODE_FLOAT && info.dtype.bits == 32 => info,
        _ => return Err("needs a model of one float32 input".to_string()),
    };
    let contents = fs::read(path).map_err(|error| format!("{}: {}", path, error))?;
    let mut shape = info.extents();
    if shape.first() == Some(&abi::DIM_SYMBOLIC) {
        shape[0] = 1;
        let row = count_bytes(info.dtype, &shape);
        shape[0] = contents.len().checked_div(row).unwrap_or(0) as i64;
    }
    if shape.contains(&abi::DIM_SYMBOLIC) {
        return Err("only the first dim may vary".to_string());
    }
    if count_bytes(info.dtype, &shape) != contents.len() {
        return Err(format!("{}: its size is not that of the input", path));
    }
    let mut input = Tensor::new(info.dtype, shape);
    input.bytes_mut().copy_from_slice(&contents);
    Ok(input)
}

fn run(bundle_path: &str, input_path: &str, output_path: &str) -> Result<(), String> {
    let bundle = Bundle::open(bundle_path)?;
    println!("model {}", text(bundle.table.name));
    for info in bundle.inputs() {
        println!("input {}", info.describe());
    }
    for info in bundle.outputs() {
        println!("output {}", info.describe());
    }
    let mut input = read_input(&bundle, input_path)?;
    let outputs = Session::create(&bundle)?.run(&mut input)?;
    let bytes: Vec<u8> = outputs.iter().flat_map(|output| output.bytes().iter().copied()).collect();
    fs::write(output_path, bytes).map_err(|error| format!("{}: {}", output_path, error))
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [bundle, input, output] => run(bundle, input, output),
        _ => Err("usage: host BUNDLE INPUT OUTPUT".to_string()),
    };
    if let Err(message) = result {
        eprintln!("error: {}", message);
        process::exit(1);
    }
}
