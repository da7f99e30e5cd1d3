// Package exe describes a compiled model and turns the description, together
// with the objects that hold its kernels, into a standalone executable or a
// shared library.
//
// A compiled model is data: a list of named values with their places in one
// arena, and two programs (lists of kernel launches with a little control flow)
// that a small C driver, package native, walks with a pool of threads. Build is a
// pure function of its arguments: equal models and objects give equal bytes.
package exe

import (
	"encoding/json"

	"reprise/ir/dtype"
)

// Align is the alignment, in bytes, of every arena and constant offset.
const Align = 64

// ScratchBytes is the private memory that each worker hands to the kernels that
// it runs. It lies outside the arena.
const ScratchBytes = 1 << 20

// InitStep is the step number in the key that Init sees, so that no random draw
// of Init coincides with one of a step.
const InitStep = 0xFFFFFFFF

// Role says what a named value is for.
type Role uint8

// The roles. Parameters, optimizer state and buffers are the state: each lives
// at its offset at the start and at the end of every step.
const (
	RoleParam  Role = iota // learned; state
	RoleOpt                // optimizer state
	RoleBuffer             // other state: running statistics, counters
	RoleInput              // written by the driver before each step; dead after its last use
	RoleOutput             // read by the driver right after each step
	RoleKey                // key: the driver writes {seed, step, micro 0} before Init and before each step
	RoleStep               // i64[]: the driver writes the number of steps done before this one (0 for the first)
)

// String is the role's name in the signature.
func (r Role) String() string {
	switch r {
	case RoleParam:
		return "param"
	case RoleOpt:
		return "opt"
	case RoleBuffer:
		return "buffer"
	case RoleInput:
		return "input"
	case RoleOutput:
		return "output"
	case RoleKey:
		return "key"
	case RoleStep:
		return "step"
	}
	return "invalid"
}

// IsState reports whether values of this role outlive a step, are saved in
// checkpoints and count in the state's hash.
func (r Role) IsState() bool { return r <= RoleBuffer }

// Value is a named array in the arena, densely packed and row-major.
type Value struct {
	Name   string
	Layer  string // layer path
	Role   Role
	DType  dtype.Type
	Shape  []int64
	Offset int64 // bytes from the start of the arena, a multiple of Align
	Bytes  int64 // Shape's elements times the element size

	// Feed says how the driver fills an input, with and without --data:
	//
	//	tokens[:V]      windows of a byte or token stream; the last axis is time, V the vocabulary
	//	targets[:V]     the same windows one position later
	//	normal          N(0, 1) from the seed
	//	uniform         [0, 1) from the seed
	//	uniform_int:K   0 … K−1 from the seed
	//	zeros           zeros
	//	(empty)         from a file only
	//
	// Whatever the feed, a data file with an array of the input's name serves too.
	Feed string

	// BatchAxes is the number of leading axes that count samples; a data file's
	// array has one axis (its rows) in their place. 0 means 1, or 0 for a scalar.
	BatchAxes int

	// Data holds the initial bytes of a state value that Init does not fill
	// (imported weights). The driver copies them before Init runs.
	Data []byte
}

// Arg is an argument of a launch: a place in the arena or, if Const, in the
// read-only constant pool.
type Arg struct {
	Const  bool
	Offset int64
	Bytes  int64 // extent that the kernel may touch
	Write  bool  // the kernel may write it
}

// Kind tells the instructions of a program apart.
type Kind uint8

// The instructions.
const (
	Launch        Kind = iota // run tiles 0 … Tiles−1 of Symbol
	Jump                      // go to Targets[0]
	BranchIfFalse             // go to Targets[0] if the bool at Pred is false, else on
	Case                      // go to Targets[i], i the integer at Pred; out of range: the last
	Check                     // end the program with an error that says Message unless all bools at Pred are true
	Print                     // the driver writes a line to standard error: Args are a description (ops.PrintCall), then operands
)

// Inst is one instruction. All workers walk the same list; a launch's tiles are
// split statically, worker w of n runs tiles [w·T/n, (w+1)·T/n).
type Inst struct {
	Kind Kind

	// Wait makes every worker wait for all others before the instruction.
	// PlaceWaits sets it.
	Wait bool

	Symbol string // Launch: void (char *const *args, int64_t lo, int64_t hi, char *scratch)
	Layer  string // Launch: layer path, for profiles
	Tiles  int64  // Launch
	Args   []Arg  // Launch

	// Foreign: Symbol is a function of the shared library Library (absolute, or relative to the directory
	// of the binary; "": of the process), which is loaded when an instance is made.
	Foreign bool
	Library string

	// Run is the run of an op that the instruction is part of: an index in Model.Ops plus one, 0
	// for what belongs to none (Init, states brought home).
	Run int

	Pred    Arg        // BranchIfFalse: a bool; Case: an integer; Check: bools
	Message string     // Check
	Index   dtype.Type // Case: element type at Pred, i32 or i64
	Targets []int      // instruction indices; the program's length means its end
}

// OpRun is one run of an op of the plan in a step: who it is, and which instructions it is.
type OpRun struct {
	Op    int `json:"op"`    // number of the op in the plan
	ID    int `json:"id"`    // its number in the program before planning, the same at every budget
	Sub   int `json:"sub"`   // 0: the op itself; k: the k-th op in its regions, in program order
	Clone int `json:"clone"` // 0: the first run; k: the k-th recomputation
	// Planned is how often the plan runs op Op in a step, clones among it; what stands in its
	// regions runs as often as these do, each time.
	Planned int    `json:"planned"`
	Name    string `json:"name"` // as plans and reports have it: layer path, provenance, kind
	Layer   string `json:"layer"`
	First   int    `json:"first"`  // its instructions, those of its regions among them
	Last    int    `json:"last"`   // the last of them
	Entry   int    `json:"entry"`  // the instruction that is executed once for each execution of the op,
	Repeat  int    `json:"repeat"` // less the executions of this one, a loop's way back; −1: none
}

// Model is a compiled model.
type Model struct {
	Name        string
	Target      string   // e.g. "cpu:x86-64-v4"
	Features    []string // CPU features that the kernels use, see KnownFeatures
	InputSHA256 string   // hash of what it was compiled from, hex; compared on resume
	Train       bool     // a training executable; otherwise inference
	Loss        string   // Train: name of the output that is the loss, one element

	Values []Value
	Init   []Inst // fills the state that has no Data
	Step   []Inst
	Ops    []OpRun // of Step, in the order in which they stand there; regions' after their op
	Consts []byte  // the constant pool

	ArenaBytes    int64 // the promised peak: the highest byte that is touched
	ResidentBytes int64 // state lies below this offset, and nothing else does

	// LibraryDir is where relative libraries are looked for that are not beside the binary: for programs
	// in temporary places. "": nowhere.
	LibraryDir string

	Info json.RawMessage // what compile --json prints, kept in the signature under "info"; may be nil
	Plan json.RawMessage // the plan, under "plan"; may be nil
}

// Find returns the value of this name, or nil.
func (m *Model) Find(name string) *Value {
	for i := range m.Values {
		if m.Values[i].Name == name {
			return &m.Values[i]
		}
	}
	return nil
}
