// Runs a packager bundle from Go by cgo, with nothing but packager.h. bundle.go is a wrapper to copy.
//
//	export PKG_CONFIG_PATH="$(packager sdk --pkgconfig)"
//	(cd samples/hosts/go && go build -o host .)
//	samples/hosts/go/host ./model.so input.f32 output.f32
//
// The input file holds the model's one float32 input, little-endian, row-major. Where the first extent of the input is
// symbolic it follows from the size of the file. All outputs are written one after another.
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 3 {
		return errors.New("usage: host BUNDLE INPUT OUTPUT")
	}
	bundle, err := Open(arguments[0])
	if err != nil {
		return err
	}
	fmt.Println("model", bundle.Name)
	for _, info := range bundle.Inputs {
		fmt.Println("input", info)
	}
	for _, info := range bundle.Outputs {
		fmt.Println("output", info)
	}
	session, err := bundle.NewSession()
	if err != nil {
		return err
	}
	defer session.Close()
	input, err := readInput(bundle, arguments[1])
	if err != nil {
		return err
	}
	defer input.Free()
	outputs, err := session.Run([]*Tensor{input})
	if err != nil {
		return err
	}
	var written []byte
	for _, output := range outputs {
		written = append(written, output.Data...)
		output.Free()
	}
	return os.WriteFile(arguments[2], written, 0o644)
}

// readInput reads the model's one input and derives a symbolic first extent from the size of the file.
func readInput(bundle *Bundle, path string) (*Tensor, error) {
	if len(bundle.Inputs) != 1 || bundle.Inputs[0].Dtype() != "float32" {
		return nil, errors.New("needs a model of one float32 input")
	}
	info := bundle.Inputs[0]
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	shape, row := append([]int64{}, info.Shape...), int64(4)
	for axis, extent := range shape {
		if extent == Symbolic && axis > 0 {
			return nil, errors.New("only the first dim may vary")
		}
		if extent != Symbolic {
			row *= extent
		}
	}
	rows := int64(1)
	if len(shape) > 0 && shape[0] == Symbolic {
		rows = int64(len(data)) / max(row, 1)
		shape[0] = rows
	}
	if len(data) == 0 || rows*row != int64(len(data)) {
		return nil, fmt.Errorf("%s: its size is not that of the input", path)
	}
	input := NewTensor(info, shape)
	copy(input.Data, data)
	return input, nil
}

func max(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}
