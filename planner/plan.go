package planner

import (
	"fmt"
	"strings"
)

// Placement is where one stretch of memory lies in the arena, and when.
type Placement struct {
	Value  int   `json:"value"`  // the first value that lives in it
	Start  int   `json:"start"`  // position in Plan.Order of the op that opens it; -1: resident
	End    int   `json:"end"`    // last position at which it is in use, inclusive
	Offset int64 `json:"offset"` // bytes from the start of the arena
	Bytes  int64 `json:"bytes"`
}

// Transfer moves one stretch of memory to the host and back between two uses. Positions are
// those of Plan.Order. The copy out starts when the op at Out is done and the link is free; the
// op at Free waits for its end, and from there on the memory is free. The copy back starts before
// the op at In, where memory is taken again; the op at Use waits for its end. Host memory is held
// from Out to Use.
type Transfer struct {
	Value int `json:"value"` // the first value that lives in the stretch
	Start int `json:"start"` // position of the op that opens it
	Out   int `json:"out"`   // a use, after which nothing uses it until Use
	Free  int `json:"free"`
	In    int `json:"in"`
	Use   int `json:"use"`
}

// Proofs, from the weakest: what kind of argument Plan.LowerBound rests on.
const (
	ProofBase       = "base"               // every op runs once
	ProofCut        = "single-cut"         // Lagrangian minimum cut at one op, integer arithmetic
	ProofCutInteger = "single-cut-integer" // its integer version
	ProofCutPath    = "two-cuts"           // branch and bound over two cuts in a row
	ProofExact      = "exact"              // an exhaustive search
)

// Plan is a total order of op instances with what is known about it. All sizes
// are in bytes and all costs in the unit of Op.Cost.
type Plan struct {
	Order       []int   // op indices; repeats are recomputations, each reads the latest instance
	Cost        int64   // of every instance together, and of the time that ops wait for Transfers
	BaseCost    int64   // of every op once
	PeakBytes   int64   // live memory at its highest, everything included
	BudgetBytes int64   // what was asked for
	LowerBound  int64   // no legal plan within BudgetBytes costs less
	Overhead    float64 // (Cost - BaseCost) / BaseCost
	Gap         float64 // (Cost - LowerBound) / BaseCost
	Proof       string  // kind of proof behind LowerBound

	Transfers []Transfer // to the host and back, in the order of Out; only where Problem.Offload allows
	Stall     int64      // part of Cost: time that ops wait for copies
	HostBytes int64      // most host memory held at a time

	Offsets    []Placement // set if Options.Layout asked for them
	ArenaBytes int64       // PeakBytes, or the end of the highest Placement if Layout

	Seconds float64 // wall time spent
	Steps   int64   // work spent, in steps of Options.Steps
	Solver  string  // which solver found it
	Seed    uint64
}

// finish fills in what follows from the other fields.
func (pl *Plan) finish() {
	pl.Overhead, pl.Gap = 0, 0
	if pl.BaseCost > 0 {
		pl.Overhead = float64(pl.Cost-pl.BaseCost) / float64(pl.BaseCost)
		pl.Gap = float64(pl.Cost-pl.LowerBound) / float64(pl.BaseCost)
	}
}

// InfeasibleError says that no plan within the budget was found.
type InfeasibleError struct {
	Budget          int64 // what was asked for
	MinBudget       int64 // the smallest budget for which a plan was found
	LowerBoundBytes int64 // no plan can do with less
	Binding         []int // values live at the peak of the plan for MinBudget, largest first

	names []string
}

func (e *InfeasibleError) Error() string {
	s := fmt.Sprintf("planner: no plan within %d bytes: the smallest budget found is %d, and no plan can do with less than %d",
		e.Budget, e.MinBudget, e.LowerBoundBytes)
	if len(e.names) > 0 {
		s += "; live at the peak: " + strings.Join(e.names, ", ")
	}
	return s
}

// Proven reports that no plan at all fits the budget, as opposed to none having
// been found.
func (e *InfeasibleError) Proven() bool { return e.Budget < e.LowerBoundBytes }
