package main

/*
#cgo pkg-config: packager
#include <dlfcn.h>
#include <stdlib.h>

#include "packager.h"

// cgo calls no function pointers: one function for each of the table that is used.
static const packager_bundle_v1_t *call_entry(void *symbol) {
  return (*(packager_bundle_v1_fn **)&symbol)();
}
static int32_t session_create(const packager_bundle_v1_t *bundle, packager_session_t **session) {
  return bundle->session_create(NULL, session);
}
static int32_t session_output_shape(const packager_bundle_v1_t *bundle, packager_session_t *session, DLTensor **inputs,
                                    int32_t output, int64_t *shape) {
  return bundle->session_output_shape(session, (const DLTensor *const *)inputs, bundle->num_inputs, output, shape);
}
static int32_t session_run(const packager_bundle_v1_t *bundle, packager_session_t *session, DLTensor **inputs,
                           DLTensor **outputs) {
  return bundle->session_run(session, (const DLTensor *const *)inputs, bundle->num_inputs, outputs,
                             bundle->num_outputs, NULL);
}
static void session_destroy(const packager_bundle_v1_t *bundle, packager_session_t *session) {
  bundle->session_destroy(session);
}
static const char *status_name(const packager_bundle_v1_t *bundle, int32_t status) {
  return bundle->status_name(status);
}
static const char *error_of(const packager_bundle_v1_t *bundle, packager_session_t *session) {
  return session ? bundle->session_error(session) : bundle->thread_error();
}
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"
)

// Symbolic is the extent of a dim that is known only at run time.
const Symbolic = C.PACKAGER_DIM_SYMBOLIC

// Info describes an input or output.
type Info struct {
	Name  string
	Shape []int64  // Symbolic where known only at run time
	Dims  []string // the symbolic expression, or "" where static
	dtype C.DLDataType
}

// Dtype returns the element type: "float32".
func (info Info) Dtype() string {
	names := []string{"int", "uint", "float", "", "bfloat", "", "bool"}
	name := "type"
	if code := int(info.dtype.code); code < len(names) {
		name = names[code]
	}
	return fmt.Sprintf("%s%d", name, info.dtype.bits)
}

func (info Info) String() string {
	extents := make([]string, len(info.Shape))
	for axis, extent := range info.Shape {
		if extents[axis] = info.Dims[axis]; extents[axis] == "" {
			extents[axis] = fmt.Sprint(extent)
		}
	}
	return fmt.Sprintf("%s: %s [%s]", info.Name, info.Dtype(), strings.Join(extents, ", "))
}

func (info Info) bytes(shape []int64) int {
	size := (int(info.dtype.bits) + 7) / 8 // narrow types have a byte for each element
	for _, extent := range shape {
		size *= int(extent)
	}
	return size
}

func infos(first *C.packager_tensor_info_t, count C.int32_t) []Info {
	found := make([]Info, count)
	for i, info := range unsafe.Slice(first, int(count)) {
		found[i] = Info{C.GoString(info.name), make([]int64, info.ndim), make([]string, info.ndim), info.dtype}
		for axis := range found[i].Shape {
			found[i].Shape[axis] = int64(unsafe.Slice(info.shape, int(info.ndim))[axis])
			if found[i].Shape[axis] == Symbolic {
				found[i].Dims[axis] = C.GoString(unsafe.Slice(info.dims, int(info.ndim))[axis])
			}
		}
	}
	return found
}

// Tensor has its elements in memory of C: a Go pointer must not be stored where C sees it. Free it.
type Tensor struct {
	Data   []byte
	tensor *C.DLTensor
}

// NewTensor allocates a tensor of the type of an input or output. All extents are known and not negative.
func NewTensor(info Info, shape []int64) *Tensor {
	size := info.bytes(shape)
	tensor := (*C.DLTensor)(C.calloc(1, C.sizeof_DLTensor))
	tensor.device.device_type = C.kDLCPU
	tensor.ndim = C.int32_t(len(shape))
	tensor.dtype = info.dtype
	tensor.shape = (*C.int64_t)(C.calloc(C.size_t(len(shape)+1), 8)) // + 1: a scalar has no extents
	for axis, extent := range shape {
		unsafe.Slice(tensor.shape, len(shape))[axis] = C.int64_t(extent)
	}
	tensor.data = C.calloc(C.size_t(size+1), 1) // + 1: an extent may be zero
	return &Tensor{unsafe.Slice((*byte)(tensor.data), size), tensor}
}

// Shape returns the extents.
func (t *Tensor) Shape() []int64 {
	shape := make([]int64, t.tensor.ndim)
	for axis := range shape {
		shape[axis] = int64(unsafe.Slice(t.tensor.shape, len(shape))[axis])
	}
	return shape
}

// Free releases the memory; Data must not be used any more.
func (t *Tensor) Free() {
	C.free(t.tensor.data)
	C.free(unsafe.Pointer(t.tensor.shape))
	C.free(unsafe.Pointer(t.tensor))
	t.Data, t.tensor = nil, nil
}

// Bundle is a loaded bundle. It stays loaded until the program ends.
type Bundle struct {
	Name    string
	Inputs  []Info
	Outputs []Info
	table   *C.packager_bundle_v1_t
}

// Open loads a bundle.
func Open(path string) (*Bundle, error) {
	runtime.LockOSThread() // dlerror() is of the thread
	defer runtime.UnlockOSThread()
	file, entry := C.CString(path), C.CString("packager_bundle_v1")
	defer C.free(unsafe.Pointer(file))
	defer C.free(unsafe.Pointer(entry))
	library := C.dlopen(file, C.RTLD_NOW|C.RTLD_LOCAL)
	if library == nil {
		return nil, errors.New(C.GoString(C.dlerror()))
	}
	symbol := C.dlsym(library, entry)
	if symbol == nil {
		return nil, errors.New(C.GoString(C.dlerror()))
	}
	table := C.call_entry(symbol)
	if table.abi_version != C.PACKAGER_ABI_VERSION {
		return nil, fmt.Errorf("%s: made for another version of packager.h", path)
	}
	return &Bundle{
		C.GoString(table.name), infos(table.inputs, table.num_inputs), infos(table.outputs, table.num_outputs), table,
	}, nil
}

// Session runs a bundle, in one goroutine at a time. Close it.
type Session struct {
	bundle  *Bundle
	session *C.packager_session_t
}

// NewSession creates a session. Sessions share code and constants.
func (b *Bundle) NewSession() (*Session, error) {
	runtime.LockOSThread() // thread_error() is of the thread
	defer runtime.UnlockOSThread()
	session := &Session{bundle: b}
	return session, session.check("session_create", C.session_create(b.table, &session.session))
}

// Close frees the session.
func (s *Session) Close() { C.session_destroy(s.bundle.table, s.session) }

// Run runs the model once. The outputs are the caller's to free.
func (s *Session) Run(inputs []*Tensor) ([]*Tensor, error) {
	if len(inputs) != len(s.bundle.Inputs) {
		return nil, fmt.Errorf("%d inputs, not %d", len(inputs), len(s.bundle.Inputs))
	}
	given := pointers(inputs)
	defer C.free(unsafe.Pointer(given))
	outputs := []*Tensor{}
	failed := func(err error) ([]*Tensor, error) {
		for _, output := range outputs {
			output.Free()
		}
		return nil, err
	}
	for i, info := range s.bundle.Outputs {
		shape := make([]int64, len(info.Shape)+1) // + 1: a scalar has no extents
		status := C.session_output_shape(s.bundle.table, s.session, given, C.int32_t(i), (*C.int64_t)(&shape[0]))
		if err := s.check("session_output_shape", status); err != nil {
			return failed(err)
		}
		outputs = append(outputs, NewTensor(info, shape[:len(info.Shape)]))
	}
	results := pointers(outputs)
	defer C.free(unsafe.Pointer(results))
	if err := s.check("session_run", C.session_run(s.bundle.table, s.session, given, results)); err != nil {
		return failed(err)
	}
	for i, info := range s.bundle.Outputs { // an extent that only the run knows may be smaller than its room
		outputs[i].Data = outputs[i].Data[:info.bytes(outputs[i].Shape())]
	}
	return outputs, nil
}

// pointers returns an array of C with the tensors' addresses.
func pointers(tensors []*Tensor) **C.DLTensor {
	array := (**C.DLTensor)(C.calloc(C.size_t(len(tensors)+1), C.size_t(unsafe.Sizeof(uintptr(0)))))
	for i, tensor := range tensors {
		unsafe.Slice(array, len(tensors))[i] = tensor.tensor
	}
	return array
}

func (s *Session) check(call string, status C.int32_t) error {
	if status == C.PACKAGER_OK {
		return nil
	}
	name, message := C.status_name(s.bundle.table, status), C.error_of(s.bundle.table, s.session)
	return fmt.Errorf("%s: %s: %s", call, C.GoString(name), C.GoString(message))
}
