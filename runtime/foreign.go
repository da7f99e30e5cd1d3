package runtime

import (
	"errors"
	"path/filepath"
	goruntime "runtime"
	"unsafe"

	"github.com/ebitengine/purego"

	"reprise/ir/tensor"
	"reprise/runtime/exe"
)

// Foreign calls foreign kernels (docs/foreign.md) in this process, for the interpreter. It is used by
// one goroutine at a time.
type Foreign struct {
	dir  string
	open map[string]uintptr
}

// NewForeign makes a caller that takes relative libraries from dir.
func NewForeign(dir string) *Foreign { return &Foreign{dir, map[string]uintptr{}} }

// Close unloads the libraries.
func (f *Foreign) Close() error {
	var errs []error
	for _, h := range f.open {
		errs = append(errs, purego.Dlclose(h))
	}
	clear(f.open)
	return errors.Join(errs...)
}

// function loads a library's function.
func (f *Foreign) function(library, symbol string) (uintptr, error) {
	handle := uintptr(purego.RTLD_DEFAULT)
	if library != "" {
		path := library
		if !filepath.IsAbs(path) {
			path = filepath.Join(f.dir, path)
		}
		path, err := filepath.Abs(path)
		if err != nil {
			return 0, err
		}
		h, ok := f.open[path]
		if !ok {
			if h, err = purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL); err != nil {
				return 0, &exe.Error{Code: "foreign", Message: "cannot load the library of foreign kernel \"" + symbol + "\": " + err.Error(),
					Hint: "put it where the model is, or name it by an absolute path"}
			}
			f.open[path] = h
		}
		handle = h
	}
	fn, err := purego.Dlsym(handle, symbol)
	if err != nil {
		return 0, &exe.Error{Code: "foreign", Message: "library \"" + library + "\" has no function \"" + symbol + "\"",
			Hint: "export it: it must be neither static nor hidden"}
	}
	return fn, nil
}

// Call runs all tiles of a function on in, in order, and fills out. call describes the call
// (ops.ForeignCall).
func (f *Foreign) Call(library, symbol string, tiles int64, call []byte, in, out []*tensor.Tensor) error {
	fn, err := f.function(library, symbol)
	if err != nil {
		return err
	}
	args := []unsafe.Pointer{aligned(call)}
	for _, t := range in {
		args = append(args, aligned(t.Data))
	}
	first := len(args)
	for _, t := range out {
		args = append(args, aligned(t.Data))
	}
	var pin goruntime.Pinner
	defer pin.Unpin()
	for _, p := range args {
		pin.Pin(p)
	}
	scratch := aligned(make([]byte, exe.ScratchBytes))
	purego.SyscallN(fn, uintptr(unsafe.Pointer(&args[0])), 0, uintptr(tiles), uintptr(scratch))
	goruntime.KeepAlive(args)
	goruntime.KeepAlive(scratch)
	for i, t := range out {
		copy(t.Data, unsafe.Slice((*byte)(args[first+i]), len(t.Data)))
	}
	return nil
}

// aligned copies bytes to a multiple of exe.Align.
func aligned(data []byte) unsafe.Pointer {
	b := make([]byte, len(data)+exe.Align)
	at := 0
	if r := int(uintptr(unsafe.Pointer(&b[0])) % exe.Align); r != 0 {
		at = exe.Align - r
	}
	copy(b[at:], data)
	return unsafe.Pointer(&b[at])
}
