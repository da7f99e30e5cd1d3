// Package debug holds what only tests and people who hunt a fault of the compiler set: values in
// compile.Options.Debug, never a global and never an environment variable. The zero value changes
// nothing.
package debug

import "fmt"

// Options of a compilation.
type Options struct {
	// Faults are put into the program that is compiled: the checks have to find them.
	Faults []Fault
	// Unproven leaves out the proofs of the final program, so that a fault of its structure gets as far as the
	// running program.
	Unproven bool
}

// Kind is what a fault does.
type Kind uint8

// The kinds.
const (
	FlipBit Kind = iota + 1 // flips bit Bit of element Element of result Result, after the run wrote it
	Reseed                  // gives the first random op of the run another op id
	Reorder                 // adds the elements of the run's first reduction in the opposite order
	Variant                 // gives the run another kernel that computes the same
	Twice                   // runs the op a second time, right after the run
	Noise                   // in every run of the op, moves that element by an ULP, up or down by a counter of calls
	Drop                    // leaves the run's code out
	Clobber                 // overwrites the first operand of the run right before it
)

// String is the kind in a message.
func (k Kind) String() string {
	names := [...]string{"", "flip a bit", "reseed", "reorder", "variant", "twice", "noise", "drop", "clobber"}
	if int(k) >= len(names) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return names[k]
}

// Fault is one fault in one run of an op, or in all of them (Noise).
type Fault struct {
	Kind    Kind
	ID      int // of the op in the program before planning
	Clone   int // which run; 0: the first
	Result  int
	Bit     uint
	Element int64
}
