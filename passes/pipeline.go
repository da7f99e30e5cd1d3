// Package passes is the table of what happens to a program between the model and the
// planner, in order, with the reasons for the order.
package passes

import (
	"fmt"
	"slices"
	"time"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/passes/autodiff"
	"reprise/passes/canon"
	"reprise/passes/cse"
	"reprise/passes/dce"
	"reprise/passes/expand"
	"reprise/passes/group"
	"reprise/passes/raise"
)

// Pass is a row of the table. Run changes the module in place.
type Pass struct {
	Name string
	Doc  string
	Run  func(m *ir.Module, t *ir.Table) error
}

// Edge says that one pass must come before another, and why. Passes that occur more than once
// are named with their occurrence, "cse#2".
type Edge struct{ Before, After, Why string }

// Table lists the passes before planning. Plan, apply, buffer, lower and emit follow; they
// make programs rather than change them (packages remat, buffer, lower, codegen).
func Table() []Pass {
	plain := func(f func(*ir.Module)) func(*ir.Module, *ir.Table) error {
		return func(m *ir.Module, _ *ir.Table) error { f(m); return nil }
	}
	return []Pass{
		{"canon", "equal computations get equal forms; ops that do nothing go", canon.Run},
		{"dce", "ops that nothing needs go", plain(dce.Run)},
		{"raise", "softmax, norms, GELU, losses, rotary embedding and attention that were written in parts become one op", raise.Run},
		{"cse", "equal computations become one", plain(cse.Run)},
		{"autodiff", "gradient becomes the program that computes it", func(m *ir.Module, t *ir.Table) error { return autodiff.Run(m, t) }},
		{"expand", "composite ops become primitives, calls the ops of what they call", expand.Run},
		{"canon#2", "as before, on what autodiff and expand made", canon.Run},
		{"cse#2", "what forward and backward both compute becomes one: the planner decides whether to compute it again", plain(cse.Run)},
		{"dce#2", "primal ops that only an unused result needed go", plain(dce.Run)},
		{"group", "ops that will be one kernel become one unit", group.Run},
	}
}

// Edges lists the constraints on the order of Table; a test holds the table against them.
func Edges() []Edge {
	return []Edge{
		{"canon", "cse", "equal ops must look equal to be found"},
		{"canon", "raise", "patterns look for transposes in contractions, and for constants, where canonical forms have them"},
		{"dce", "raise", "a dead reader of what lies inside a pattern would keep it from being raised"},
		{"raise", "cse", "what two patterns share must still be each one's own, and raised ops may be equal"},
		{"raise", "autodiff", "composite ops have gradients of their own, which keep less than those of their parts"},
		{"raise", "expand", "from the raised op on, its order is the meaning: a pattern and the op end up as the same program"},
		{"dce", "autodiff", "a dead op has no gradient to compute"},
		{"cse", "autodiff", "one op instead of two gives one gradient instead of two, and a sum less"},
		{"autodiff", "expand", "composite ops have gradients of their own, which keep less than those of their parts"},
		{"expand", "canon#2", "expansions broadcast constants and reshape to and fro"},
		{"expand", "cse#2", "row statistics of forward and backward are equal only in primitives"},
		{"canon#2", "cse#2", "equal ops must look equal to be found"},
		{"cse#2", "dce#2", "merging leaves producers without readers"},
		{"cse#2", "group", "later it would merge what the planner wants computed twice"},
		{"dce#2", "group", "a dead reader would keep a value out of its unit"},
	}
}

// Options of Run.
type Options struct {
	Only []string // names of passes to run, in the table's order; nil: all
	// After, if set, sees the module after each pass.
	After func(pass string, m *ir.Module)
	// Verified, if set, is told how long each run of the verifier took.
	Verified func(d time.Duration)
}

// Failure is a pass that failed or left a module that does not verify. Before is the text of the
// module that it was given: with the pass's name, a reproducer.
type Failure struct {
	Pass   string
	Before string
	Err    error
}

func (f *Failure) Error() string { return fmt.Sprintf("pass %s: %v", f.Pass, f.Err) }
func (f *Failure) Unwrap() error { return f.Err }

// Run runs the passes on m, in place, and verifies after each.
func Run(m *ir.Module, t *ir.Table, opt Options) error {
	verify := func() error {
		start := time.Now()
		err := ir.Verify(m)
		if opt.Verified != nil {
			opt.Verified(time.Since(start))
		}
		return err
	}
	if err := verify(); err != nil {
		return err
	}
	if m.Attrs.Str("stage") == "planned" {
		return diag.Errorf("planned", "module %q was planned already: nothing may change it any more", m.Name).
			WithHint("start from the model, or from the text of a pass before planning")
	}
	for _, p := range Table() {
		if opt.Only != nil && !slices.Contains(opt.Only, p.Name) {
			continue
		}
		before := m.Clone()
		err := guarded(p, m, t)
		if err == nil {
			err = verify()
		}
		if err != nil {
			if d := diag.As(err); d.Code != "error" && d.Code != "verify" && d.Code != "bug" {
				return err // the model's mistake, said in its terms
			}
			return &Failure{p.Name, before.String(), err}
		}
		if opt.After != nil {
			opt.After(p.Name, m)
		}
	}
	return nil
}

// guarded runs a pass; a broken invariant is its failure, like any other.
func guarded(p Pass, m *ir.Module, t *ir.Table) (err error) {
	defer diag.Recovered(&err)
	return p.Run(m, t)
}
