// Package runtime runs compiled models: shared libraries in this process, without
// cgo, and executables as processes of their own.
package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"

	"reprise/runtime/exe"
)

// abiError mirrors reprise_error of native/src/reprise.h.
type abiError struct {
	code    int32
	message [1024]byte
	hint    [512]byte
}

// abiOptions mirrors reprise_options.
type abiOptions struct {
	seed    uint64
	threads int32
	_       int32
}

// codeNames are the codes of reprise.h in order, as the command's JSON has them.
func codeName(code int32) string {
	names := []string{"ok", "usage", "cpu", "memory", "data", "changed", "checkpoint", "io", "foreign", "assert"}
	if code < 0 || int(code) >= len(names) {
		return "unknown"
	}
	return names[code]
}

func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

func (e *abiError) err() error {
	return &exe.Error{Code: codeName(e.code), Message: text(e.message[:]), Hint: text(e.hint[:])}
}

// Library is a shared model that is loaded into this process.
type Library struct {
	// Description is the model's signature.
	Description exe.Description

	handle uintptr
	byName map[string]exe.ValueDescription

	describe   func() string
	arenaBytes func() int64
	create     func(arena unsafe.Pointer, o *abiOptions, out *uintptr, e *abiError) int32
	bind       func(i uintptr, name string, data unsafe.Pointer, bytes int64, e *abiError) int32
	step       func(i uintptr, e *abiError) int32
	stepBegin  func(i uintptr, e *abiError) int32
	stepNext   func(i uintptr, e *abiError) int64
	count      func(i uintptr, e *abiError) int32
	probe      func(i uintptr, init int32, inst int64, threads int32, seed uint64, e *abiError) int32
	counts     func(i uintptr, to unsafe.Pointer, n int64, e *abiError) int32
	read       func(i uintptr, name string, data unsafe.Pointer, bytes int64, e *abiError) int32
	write      func(i uintptr, name string, data unsafe.Pointer, bytes int64, e *abiError) int32
	reset      func(i uintptr, seed uint64, e *abiError) int32
	getStep    func(i uintptr) int64
	setStep    func(i uintptr, step int64, e *abiError) int32
	load       func(i uintptr, path string, strict int32, e *abiError) int32
	save       func(i uintptr, path string, e *abiError) int32
	hash       func(i uintptr, hex unsafe.Pointer, e *abiError) int32
	destroy    func(i uintptr)
}

// Open loads a shared model. The library stays loaded until Close, which must come
// after that of its instances.
func Open(path string) (l *Library, err error) {
	path, err = filepath.Abs(path) // without a slash dlopen would search the system's directories
	if err != nil {
		return nil, err
	}
	if _, err := exe.ReadDescription(path); err != nil { // says more than dlopen where it is none of ours
		return nil, err
	}
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	l = &Library{handle: handle, byName: map[string]exe.ValueDescription{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, purego.Dlclose(handle))
		}
	}()
	for _, f := range []struct {
		name string
		to   any
	}{
		{"reprise_describe", &l.describe},
		{"reprise_arena_bytes", &l.arenaBytes},
		{"reprise_create", &l.create},
		{"reprise_bind", &l.bind},
		{"reprise_step", &l.step},
		{"reprise_step_begin", &l.stepBegin},
		{"reprise_step_next", &l.stepNext},
		{"reprise_count", &l.count},
		{"reprise_probe", &l.probe},
		{"reprise_counts", &l.counts},
		{"reprise_read", &l.read},
		{"reprise_write", &l.write},
		{"reprise_reset", &l.reset},
		{"reprise_get_step", &l.getStep},
		{"reprise_set_step", &l.setStep},
		{"reprise_load", &l.load},
		{"reprise_save", &l.save},
		{"reprise_state_sha256", &l.hash},
		{"reprise_destroy", &l.destroy},
	} {
		symbol, err := purego.Dlsym(handle, f.name)
		if err != nil {
			return nil, fmt.Errorf("%s is an executable, or of another version: %w", path, err)
		}
		purego.RegisterFunc(f.to, symbol)
	}
	if err := json.Unmarshal([]byte(l.describe()), &l.Description); err != nil {
		return nil, fmt.Errorf("%s: signature: %w", path, err)
	}
	for _, v := range l.Description.Values {
		l.byName[v.Name] = v
	}
	return l, nil
}

// Close unloads the library.
func (l *Library) Close() error { return purego.Dlclose(l.handle) }

// Options are those of an instance.
type Options struct {
	Seed    uint64
	Threads int    // 0: the CPUs this process may run on
	Arena   []byte // ArenaBytes at a multiple of 64 bytes; nil: the instance maps its own
}

// Instance is one running copy of a model with its own arena and threads. It is
// used by one goroutine at a time; instances are independent.
type Instance struct {
	lib    *Library
	owns   bool // of lib
	handle uintptr
	bound  map[string]*binding
	pins   goruntime.Pinner // the arena
}

// binding is Go memory that C reads or writes during a step.
type binding struct {
	data []byte
	pin  goruntime.Pinner
}

// Create makes an instance and initializes its state.
func (l *Library) Create(o Options) (*Instance, error) {
	i := &Instance{lib: l, bound: map[string]*binding{}}
	var arena unsafe.Pointer
	if o.Arena != nil {
		if int64(len(o.Arena)) < l.arenaBytes() {
			return nil, &exe.Error{Code: "usage", Message: fmt.Sprintf("an arena of %d bytes: the model needs %d", len(o.Arena), l.arenaBytes())}
		}
		arena = unsafe.Pointer(unsafe.SliceData(o.Arena))
		i.pins.Pin(unsafe.SliceData(o.Arena))
	}
	var e abiError
	if l.create(arena, &abiOptions{seed: o.Seed, threads: int32(o.Threads)}, &i.handle, &e) != 0 {
		i.pins.Unpin()
		return nil, e.err()
	}
	return i, nil
}

// Load opens a shared model and makes an instance of it, which owns the library.
func Load(path string, o Options) (*Instance, error) {
	l, err := Open(path)
	if err != nil {
		return nil, err
	}
	i, err := l.Create(o)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	i.owns = true
	return i, nil
}

// Close ends the instance's threads and frees its arena.
func (i *Instance) Close() error {
	if i.handle == 0 {
		return nil
	}
	i.lib.destroy(i.handle)
	i.handle = 0
	for _, b := range i.bound {
		b.pin.Unpin()
	}
	i.bound = nil
	i.pins.Unpin()
	if i.owns {
		return i.lib.Close()
	}
	return nil
}

// Description is the model's signature.
func (i *Instance) Description() exe.Description { return i.lib.Description }

// Bind gives an input's data, which is read anew at each step, or memory that an
// output is written to after each step. The slice is borrowed until the name is
// bound again or the instance closed; its length must be the value's size.
func (i *Instance) Bind(name string, data []byte) error {
	b := &binding{data: data}
	var e abiError
	p := unsafe.Pointer(unsafe.SliceData(data))
	if p == nil {
		p = unsafe.Pointer(&struct{ byte }{}) // an empty array; NULL would unbind
		b.pin.Pin((*struct{ byte })(p))
	} else {
		b.pin.Pin(unsafe.SliceData(data))
	}
	if i.lib.bind(i.handle, name, p, int64(len(data)), &e) != 0 {
		b.pin.Unpin()
		return e.err()
	}
	if old := i.bound[name]; old != nil {
		old.pin.Unpin()
	}
	i.bound[name] = b
	return nil
}

// Step runs one step; every input must be bound.
func (i *Instance) Step() error {
	var e abiError
	if i.lib.step(i.handle, &e) != 0 {
		return e.err()
	}
	return nil
}

// StepBegin starts a step that StepNext runs, one instruction of the program at a time.
func (i *Instance) StepBegin() error {
	var e abiError
	if i.lib.stepBegin(i.handle, &e) != 0 {
		return e.err()
	}
	return nil
}

// StepNext runs one instruction on all threads, the first after StepBegin being number 0, and returns the
// number of the next, or −1 when the step is done. An error is an assertion of the model that does not
// hold: the step has ended there.
func (i *Instance) StepNext() (int, error) {
	var e abiError
	at := i.lib.stepNext(i.handle, &e)
	if at < -1 {
		return -1, e.err()
	}
	return int(at), nil
}

// Probe runs one launch of the program of init or step on the arena as it is. How its tiles are cut, ordered and
// spread over threads is drawn from seed.
func (i *Instance) Probe(init bool, instruction, threads int, seed uint64) error {
	var which int32
	if init {
		which = 1
	}
	var e abiError
	if i.lib.probe(i.handle, which, int64(instruction), int32(threads), seed, &e) != 0 {
		return e.err()
	}
	return nil
}

// Count makes the instance count, from now on, how often each op of the plan runs.
func (i *Instance) Count() error {
	var e abiError
	if i.lib.count(i.handle, &e) != 0 {
		return e.err()
	}
	return nil
}

// Counts are the executions since Count, one number for each of the description's Ops.
func (i *Instance) Counts() ([]int64, error) {
	n := make([]int64, len(i.lib.Description.Ops))
	room := append(n, 0) // so that there is an address where there is no op
	var e abiError
	if i.lib.counts(i.handle, unsafe.Pointer(unsafe.SliceData(room)), int64(len(n)), &e) != 0 {
		return nil, e.err()
	}
	return room[:len(n)], nil
}

// Read returns a copy of a state value or, right after a step, of an output.
func (i *Instance) Read(name string) ([]byte, error) {
	data := make([]byte, i.lib.byName[name].Bytes)
	var e abiError
	r := i.lib.read(i.handle, name, unsafe.Pointer(unsafe.SliceData(data)), int64(len(data)), &e)
	if r != 0 {
		return nil, e.err()
	}
	return data, nil
}

// Write sets a state value.
func (i *Instance) Write(name string, data []byte) error {
	var e abiError
	if i.lib.write(i.handle, name, unsafe.Pointer(unsafe.SliceData(data)), int64(len(data)), &e) != 0 {
		return e.err()
	}
	return nil
}

// Reset initializes the state anew from seed; the step number becomes 0.
func (i *Instance) Reset(seed uint64) error {
	var e abiError
	if i.lib.reset(i.handle, seed, &e) != 0 {
		return e.err()
	}
	return nil
}

// StepNumber is the number of steps done.
func (i *Instance) StepNumber() int64 { return i.lib.getStep(i.handle) }

// SetStepNumber changes what the next step's random ops and schedules depend on.
func (i *Instance) SetStepNumber(step int64) error {
	var e abiError
	if i.lib.setStep(i.handle, step, &e) != 0 {
		return e.err()
	}
	return nil
}

// LoadWeights takes the parameters, and buffers where present, from a safetensors file.
func (i *Instance) LoadWeights(path string) error { return i.loadFile(path, 0) }

// Resume takes all state, seed and step number from a checkpoint of this model.
func (i *Instance) Resume(path string) error { return i.loadFile(path, 1) }

func (i *Instance) loadFile(path string, strict int32) error {
	var e abiError
	if i.lib.load(i.handle, path, strict, &e) != 0 {
		return e.err()
	}
	return nil
}

// Save writes a checkpoint.
func (i *Instance) Save(path string) error {
	var e abiError
	if i.lib.save(i.handle, path, &e) != 0 {
		return e.err()
	}
	return nil
}

// StateSHA256 is the hash of the state in the byte order of its names, in hex.
func (i *Instance) StateSHA256() (string, error) {
	var hex [65]byte
	var e abiError
	if i.lib.hash(i.handle, unsafe.Pointer(&hex), &e) != 0 {
		return "", e.err()
	}
	return text(hex[:]), nil
}
